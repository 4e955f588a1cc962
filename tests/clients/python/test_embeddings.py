"""Embeddings with openai, langchain-openai and litellm, and reranking with litellm."""

import litellm
import openai
import pytest
from langchain_openai import OpenAIEmbeddings

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

TEXTS = ["the river rises", "nobody counts the houses", "wide fields"]


@pytest.fixture(scope="module")
def client(embedder):
    with openai.OpenAI(base_url=embedder["base_url"], api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def vectors(client, embedder):
    answer = client.embeddings.create(model=embedder["model"], input=TEXTS)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)
    return [one.embedding for one in answer.data]


def test_openai_reads_both_forms(client, embedder, vectors):
    assert [len(one) for one in vectors] == [embedder["dims"]] * 3
    fields = {"model": embedder["model"], "encoding_format": "float"}
    plain = client.embeddings.create(input=TEXTS, **fields)  # without it the client asks for base64
    assert [one.embedding for one in plain.data] == [pytest.approx(one) for one in vectors]
    (short,) = client.embeddings.create(input=TEXTS[0], dimensions=8, **fields).data
    assert sum(value**2 for value in short.embedding) == pytest.approx(1)


def test_openai_is_told_what_is_wrong(client, embedder):
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=embedder["model"], input="the river " * 50)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="gpt", input="the river")


def test_langchain_embeds(embedder, vectors):
    # Its own tokens are those of OpenAI's models.
    made = OpenAIEmbeddings(
        base_url=embedder["base_url"],
        api_key="none",
        model=embedder["model"],
        check_embedding_ctx_length=False,
    )
    assert made.embed_documents(TEXTS) == [pytest.approx(one) for one in vectors]
    assert made.embed_query(TEXTS[1]) == pytest.approx(vectors[1])


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_litellm_embeds(embedder, vectors, provider):
    answer = litellm.embedding(
        model=f"{provider}/{embedder['model']}",
        api_base=embedder["base_url"],
        api_key="none",
        input=TEXTS,
    )
    assert [one["embedding"] for one in answer.data] == [pytest.approx(one) for one in vectors]


@pytest.mark.parametrize("provider", ["hosted_vllm", "cohere", "jina_ai"])
def test_litellm_reranks(embedder, provider):
    base = embedder["base_url"] if provider == "hosted_vllm" else f"{embedder['url']}/v1/rerank"
    answer = litellm.rerank(
        model=f"{provider}/{embedder['model']}",
        api_base=base,
        api_key="none",
        query=TEXTS[2],
        documents=TEXTS,
        top_n=2,
    )
    scores = [one["relevance_score"] for one in answer.results]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
