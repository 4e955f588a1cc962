"""Scores and classes: ``/v1/rerank``, ``/v1/score``, ``/v1/classify``.

In the words of Cohere, Jina, vLLM and TEI.

A cross-encoder scores each pair by itself; of an embedder the scores are cosines, or of one that
compares tokens sums of the best ones.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator
from starlette.requests import Request
from starlette.responses import Response

from lanewise.api.encoding.fields import PromptName, TextFields
from lanewise.api.encoding.running import Wanted, check_count, inputs_of, run
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.body import read_request
from lanewise.api.generation.call import Call
from lanewise.api.generation.writing import dumps_long
from lanewise.api.likelihoods.classifying import classify_by_labels
from lanewise.api.likelihoods.continuing import score_continuations
from lanewise.api.likelihoods.fields import ContinuationFields, LabelFields
from lanewise.api.schemas import FirstProblemOnly, Strict, Strings, refuse
from lanewise.api.shared.state import ServerState
from lanewise.engine.scheduling.text_queue import Floats
from lanewise.text.pooled_text import PooledText

WRITES = "this model writes text; accepted: prompt or messages, and continuations"
POOLED = "this model writes no text; accepted: requests without"
MAX_INSTRUCTION = 4096  # characters, which are before each query of a request


class Document(Strict):
    """A document with fields of its own, of which the text counts."""

    text: str


def _kind(value: Any) -> str:
    return "[text]" if isinstance(value, str) else "[document]"


AnyDocument = Annotated[
    Annotated[str, Tag("[text]")] | Annotated[Document, Tag("[document]")], Discriminator(_kind)
]
Documents = Annotated[list[AnyDocument], FirstProblemOnly()]


class PairFields(TextFields):
    """And of pairs."""

    instruction: str | None = Field(
        None, description="What makes a document fit, of models that are asked by an instruction."
    )
    instruct: str | None = Field(None, description="The same, in the words of others.")

    @property
    def asked(self) -> tuple[str, str | None]:
        """The instruction in either field, and in which."""
        if self.instruction is None:
            return "instruct", self.instruct
        return "instruction", self.instruction


class RerankRequest(PairFields):
    """Body of ``POST /v1/rerank``: documents as Cohere and Jina, or texts as TEI."""

    query: str
    documents: Documents | None = None
    texts: Strings | None = None
    top_n: int | None = Field(None, ge=0, description="0: all.")
    return_documents: bool | None = None
    raw_scores: bool = Field(False, description="As the model gives them, and not from 0 to 1.")
    return_text: bool = Field(False, description="With texts: each with its score.")

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.documents is None) == (self.texts is None):
            raise refuse("documents", "one of documents and texts is needed")
        return self

    @property
    def n_candidates(self) -> int:
        """How many are ranked."""
        return len(self.documents or self.texts or ())

    @property
    def candidates(self) -> list[str]:
        """What is ranked."""
        given = self.texts if self.documents is None else self.documents
        return [one if isinstance(one, str) else one.text for one in given or ()]

    @property
    def param(self) -> str:
        """The field that they are from."""
        return "texts" if self.documents is None else "documents"


class ScoreRequest(PairFields, ContinuationFields):
    """Body of ``POST /v1/score``: one text with each of others, or each with its own.

    Of a model that writes text a prompt, and what may follow it.
    """

    text_1: str | Strings | None = None
    text_2: str | Strings | None = None


class ClassifyRequest(TextFields, LabelFields):
    """Body of ``POST /v1/classify``; labels and questions are for a model that writes text."""

    input: str | Strings | None = None


class Scores(NamedTuple):
    """A score for each pair, and how many tokens all have."""

    values: list[float]
    n_tokens: int


async def rerank(request: Request, state: ServerState) -> Response:
    """Documents by how well they answer a query, the best first."""
    call = await read_request(request, state, RerankRequest)
    body = call.ask
    check_count(body.param, body.n_candidates, state)
    texts = body.candidates
    pairs = [(body.query, text) for text in texts]
    scores, n_tokens = await _score(call, pairs, body.param, raw=body.raw_scores)
    order = sorted(range(len(texts)), key=lambda index: (-scores[index], index))[
        : body.top_n or None
    ]
    is_new = request.url.path.startswith("/v2/")
    shows = body.return_documents
    if shows is None:
        shows = not is_new  # Cohere's newer version shows none

    def of_tei() -> Any:
        return [
            {"index": index, "score": scores[index]}
            | ({"text": texts[index]} if body.return_text else {})
            for index in order
        ]

    def of_others() -> Any:
        results: list[dict[str, Any]] = [
            {"index": index, "relevance_score": scores[index]}
            | ({"document": {"text": texts[index]}} if shows else {})
            for index in order
        ]
        return {
            "id": f"rerank-{secrets.token_hex(12)}",
            "object": "list",
            "model": body.model or state.model_name,
            "results": results,
            "usage": _usage(n_tokens),
            "meta": {
                "api_version": {"version": "2" if is_new else "1"},
                "billed_units": {"search_units": 1},
            },
        }

    make = of_tei if body.documents is None else of_others
    return await state.workers.answer(call.size, lambda: dumps_long(make()))


async def score(request: Request, state: ServerState) -> Response:
    """How well texts fit together."""
    call = await read_request(request, state, ScoreRequest)
    body = call.ask
    if state.pooling is None:
        _refuse_fields(body, ("text_1", "text_2", "instruction", "instruct"), WRITES)
        return await score_continuations(call)
    _refuse_fields(body, ("prompt", "messages", "continuations"), POOLED)
    _need_fields(body, "text_1", "text_2")
    assert body.text_1 is not None
    assert body.text_2 is not None
    firsts = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    seconds = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    check_count("text_2", len(seconds), state)
    if len(firsts) == 1:
        firsts = firsts * len(seconds)
    if len(firsts) != len(seconds):
        raise BadRequestError(
            f"text_2: {len(seconds)} texts for {len(firsts)} of text_1; accepted: as many, or one"
            " text_1",
            param="text_2",
        )
    pairs = list(zip(firsts, seconds, strict=True))
    scores, n_tokens = await _score(call, pairs, "text_2")

    def make() -> Any:
        data = [
            {"object": "score", "index": index, "score": value}
            for index, value in enumerate(scores)
        ]
        return _listed("score", data, body.model, n_tokens, state)

    return await state.workers.answer(call.size, lambda: dumps_long(make()))


async def classify(request: Request, state: ServerState) -> Response:
    """The classes of texts, each with the probability that the model gives it."""
    call = await read_request(request, state, ClassifyRequest)
    body = call.ask
    if state.pooling is None:
        texts = [body.input] if isinstance(body.input, str) else body.input
        return await classify_by_labels(call, texts)
    _refuse_fields(body, ("labels", "questions", "instruction", "messages"), POOLED)
    _need_fields(body, "input")
    assert body.input is not None
    wanted = Wanted(inputs=inputs_of(body.input), param="input", cut=body.cut)
    found = await run(call, wanted)
    pooled = state.pooled

    def make() -> Any:
        data = []
        for index, row in enumerate(found.rows):
            values = pooled.values(row.tolist())
            probs = pooled.probabilities(values)
            label = pooled.labels[int(np.argmax(values))]
            data.append({"index": index, "label": label, "probs": probs, "num_classes": len(probs)})
        return _listed("classify", data, body.model, found.n_tokens, state)

    return await state.workers.answer(found.size, lambda: dumps_long(make()))


def _refuse_fields(body: Strict, names: Sequence[str], why: str) -> None:
    for name in names:
        if getattr(body, name) is not None:
            raise BadRequestError(f"{name}: {why}", param=name)


def _need_fields(body: Strict, *names: str) -> None:
    for name in names:
        if getattr(body, name) is None:
            raise BadRequestError(f"{name} is required", param=name)


async def _score(
    call: Call[PairFields], pairs: Sequence[tuple[str, str]], param: str, *, raw: bool = False
) -> Scores:
    pooled = call.state.pooled
    name, instruction = call.ask.asked
    if instruction is not None:
        _check_instruction(name, instruction, pooled)
    if pooled.ranks:
        made = partial(pooled.pairs, pairs, instruction)
        asked = await call.state.workers.read(call.size, made)
        wanted = Wanted(inputs=asked, param=param, cut=call.ask.cut)
        found = await run(call, wanted, times=len(pairs))
        values = [float(pooled.values(row.tolist())[0]) for row in found.rows]
        return Scores(values if raw else pooled.scores(values), found.n_tokens)
    return await _cosines(call, pairs, param)


def _check_instruction(name: str, instruction: str, pooled: PooledText) -> None:
    if not pooled.takes_instruction:
        raise BadRequestError(
            f"{name}: this model is not asked by one; accepted: requests without", param=name
        )
    if len(instruction) > MAX_INSTRUCTION:
        raise BadRequestError(
            f"{name}: {len(instruction)} characters are too many; accepted: at most"
            f" {MAX_INSTRUCTION}",
            param=name,
        )


async def _cosines(call: Call[PairFields], pairs: Sequence[tuple[str, str]], param: str) -> Scores:
    """Of an embedder, with the prompts that it has for queries and documents.

    Of one that makes a vector of each token, the sums of the largest ones.
    """
    pooled, compared = call.state.pooled, call.state.pooled.compared
    places = {query: at for at, query in enumerate(dict.fromkeys(first for first, _ in pairs))}
    documents = [text for _, text in pairs]
    sides = (("query", list(places), "query"), ("document", documents, param))
    queries, others = (
        Wanted(
            inputs=texts,
            param=of,
            cut=call.ask.cut,
            prompt=PromptName(name if pooled.prompt(name) is not None else None),
            normalize=True if compared is None else None,
            are_queries=name == "query",
        )
        for name, texts, of in sides
    )
    found = await run(call, queries, others)
    fit = _cosine if compared is None else compared.score

    def make() -> list[float]:
        rows = found.rows[len(places) :]
        return [
            fit(found.rows[places[first]], row) for (first, _), row in zip(pairs, rows, strict=True)
        ]

    return Scores(await call.state.workers.write(found.size, make), found.n_tokens)


def _cosine(query: Floats, document: Floats) -> float:
    """Of two rows of length 1."""
    return float(np.dot(query.astype(np.float64), document))


def _usage(n_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}


def _listed(
    prefix: str, data: list[dict[str, Any]], model: str | None, n_tokens: int, state: ServerState
) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": "list",
        "created": int(time.time()),
        "model": model or state.model_name,
        "data": data,
        "usage": _usage(n_tokens),
    }
