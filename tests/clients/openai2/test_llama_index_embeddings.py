"""llama-index with its class for servers like OpenAI's: vectors, and a search with them."""

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

TEXTS = ["the river rises", "nobody counts the houses", "wide fields"]


@pytest.fixture
def made(embedder):
    return OpenAILikeEmbedding(
        model_name=embedder["model"],
        api_base=embedder["base_url"],
        api_key="none",
        embed_batch_size=2,
        max_retries=0,
    )


def test_texts_alone_and_in_batches(made, embedder):
    rows = made.get_text_embedding_batch(TEXTS)
    assert [len(row) for row in rows] == [embedder["dims"]] * 3
    assert made.get_text_embedding(TEXTS[2]) == pytest.approx(rows[2])


def test_a_search_finds_the_text(made):
    index = VectorStoreIndex.from_documents(
        [Document(text=text) for text in TEXTS], embed_model=made
    )
    (found,) = index.as_retriever(similarity_top_k=1).retrieve(TEXTS[1])
    assert found.text == TEXTS[1]
