"""Uses four models at one address with the clients that people have.

Arguments: the address, and the names of two chat models, an embedder and a reranker.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import anthropic
import litellm
import ollama
import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

NOTES = [
    "The river rises slowly.",
    "The houses are empty.",
    "The fields are wide.",
    "The river takes houses with it.",
]
QUESTION = "What does the river do?"
WORDS = 16


class Address:
    """The four models, each asked with every client that can."""

    def __init__(self, url: str, names: list[str]) -> None:
        self.chat, self.other, self.embedder, self.reranker = names
        self.url, self._of_openai = url, {"base_url": f"{url}/v1", "api_key": "none"}
        self.openai = openai.OpenAI(**self._of_openai, max_retries=0, timeout=600)
        self.anthropic = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        self.ollama = ollama.Client(host=url, timeout=600)

    def by_openai(self, model: str, question: str) -> str:
        messages = [{"role": "user", "content": question}]
        with self.openai.chat.completions.create(
            model=model, messages=messages, max_tokens=WORDS, temperature=0, stream=True
        ) as stream:
            parts = list(stream)
        assert {part.model for part in parts} == {model}
        return "".join(part.choices[0].delta.content or "" for part in parts if part.choices)

    def by_anthropic(self, model: str, question: str) -> str:
        messages = [{"role": "user", "content": question}]
        with self.anthropic.messages.stream(
            model=model, messages=messages, max_tokens=WORDS, extra_body={"temperature": 0}
        ) as stream:
            text = "".join(stream.text_stream)
            assert stream.get_final_message().model == model
        return text

    def by_ollama(self, model: str, question: str) -> str:
        messages = [{"role": "user", "content": question}]
        options = {"num_predict": WORDS, "temperature": 0}
        parts = list(self.ollama.chat(model, messages, options=options, stream=True))
        assert {part.model for part in parts} == {model}
        return "".join(part.message.content for part in parts)

    def by_langchain(self, model: str, question: str) -> str:
        chat = ChatOpenAI(**self._of_openai, model=model, max_tokens=WORDS, temperature=0)
        return str(chat.invoke(question).content)

    def near(self, question: str) -> list[str]:
        """The notes nearest to a question, by the embedder over langchain."""
        embeddings = OpenAIEmbeddings(
            **self._of_openai, model=self.embedder, check_embedding_ctx_length=False
        )
        asked, rows = embeddings.embed_query(question), embeddings.embed_documents(NOTES)
        scores = [sum(x * y for x, y in zip(asked, row, strict=True)) for row in rows]
        return [note for _, note in sorted(zip(scores, NOTES, strict=True), reverse=True)[:3]]

    def best(self, question: str, notes: list[str]) -> list[str]:
        """The two best of some notes, by the reranker over litellm."""
        answer = litellm.rerank(
            model=f"hosted_vllm/{self.reranker}",
            query=question,
            documents=notes,
            top_n=2,
            api_base=self.url,
            api_key="none",
        )
        return [notes[one["index"]] for one in answer.results]

    def vectors(self) -> tuple[list[float], list[float]]:
        """One text's vector, by two clients."""
        one = self.openai.embeddings.create(model=self.embedder, input=QUESTION)
        other = self.ollama.embed(self.embedder, QUESTION)
        return one.data[0].embedding, list(other.embeddings[0])


def main(url: str, *names: str) -> None:
    address = Address(url, list(names))
    listed = {model.id for model in address.openai.models.list()}
    assert listed >= set(names), listed
    best = address.best(QUESTION, address.near(QUESTION))
    assert len(best) == 2, best
    assert set(best) <= set(NOTES), best
    one, other = address.vectors()
    assert max(abs(x - y) for x, y in zip(one, other, strict=True)) < 1e-5
    question = "\n".join(["Answer from these notes:", *best, QUESTION])
    ask = (address.by_openai, address.by_anthropic, address.by_ollama, address.by_langchain)
    work = [(by, model) for by in ask for model in (address.chat, address.other)]
    with ThreadPoolExecutor(len(work)) as pool:
        said = list(pool.map(lambda one: one[0](one[1], question), work))
    for (by, model), text in zip(work, said, strict=True):
        print(f"{by.__name__} {model}: {text!r}")
    # Every client reads the same words of a model, whatever its dialect.
    for model in (address.chat, address.other):
        texts = {text.strip() for (_, of), text in zip(work, said, strict=True) if of == model}
        assert len(texts) == 1, texts
        assert texts != {""}
    loaded = {one.model.removesuffix(":latest") for one in address.ollama.ps().models}
    assert loaded >= set(names), loaded
    print("all four models answered")


if __name__ == "__main__":
    main(*sys.argv[1:])
