"""Scores: ``/v1/rerank``, ``/v1/score`` and ``/classify``, as Cohere, Jina, vLLM and TEI have them.

A cross-encoder scores each pair by itself; of an embedder the scores are cosines.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.encoding.fields import PromptName, TextFields
from lanewise.api.encoding.running import Input, Wanted, run
from lanewise.api.encoding.vectors import shaped
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.body import read_request
from lanewise.api.schemas import FirstProblemOnly, Strict, Strings, refuse
from lanewise.api.shared.state import ServerState
from lanewise.text.pooled_text import sigmoid


class Document(Strict):
    """A document with fields of its own, of which the text counts."""

    text: str


def _kind(value: Any) -> str:
    return "[text]" if isinstance(value, str) else "[document]"


AnyDocument = Annotated[
    Annotated[str, Tag("[text]")] | Annotated[Document, Tag("[document]")], Discriminator(_kind)
]
Documents = Annotated[list[AnyDocument], FirstProblemOnly()]


class RerankRequest(TextFields):
    """Body of ``POST /v1/rerank``: documents as Cohere and Jina, or texts as TEI."""

    query: str
    documents: Documents | None = None
    texts: Strings | None = None
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = None
    raw_scores: bool = Field(False, description="As the model gives them, and not from 0 to 1.")
    return_text: bool = Field(False, description="With texts: each with its score.")

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.documents is None) == (self.texts is None):
            raise refuse("documents", "one of documents and texts is needed")
        return self

    @property
    def candidates(self) -> list[str]:
        """What is ranked."""
        given = self.texts if self.documents is None else self.documents
        return [one if isinstance(one, str) else one.text for one in given or ()]

    @property
    def param(self) -> str:
        """The field that they are from."""
        return "texts" if self.documents is None else "documents"


class ScoreRequest(TextFields):
    """Body of ``POST /v1/score``: one text with each of others, or each with its own."""

    text_1: str | Strings
    text_2: str | Strings


class ClassifyRequest(TextFields):
    """Body of ``POST /classify``."""

    input: str | Strings


class Scores(list[float]):
    """A score for each pair, and how many tokens all have."""

    n_tokens = 0


async def rerank(request: Request, state: ServerState) -> Response:
    """Documents by how well they answer a query, the best first."""
    body, size = await read_request(request, state, RerankRequest)
    texts = body.candidates
    pairs = [(body.query, text) for text in texts]
    scores = await _score(pairs, body, body.param, size, request, state, raw=body.raw_scores)
    order = sorted(range(len(texts)), key=lambda index: (-scores[index], index))[: body.top_n]
    if body.documents is None:
        return JSONResponse(
            [
                {"index": index, "score": scores[index]}
                | ({"text": texts[index]} if body.return_text else {})
                for index in order
            ]
        )
    shows = body.return_documents
    if shows is None:
        shows = not request.url.path.startswith("/v2/")  # Cohere's newer version shows none
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": texts[index]}} if shows else {})
        for index in order
    ]
    count = {"prompt_tokens": scores.n_tokens, "total_tokens": scores.n_tokens}
    answer = {
        "id": f"rerank-{secrets.token_hex(12)}",
        "object": "list",
        "model": body.model or state.model_name,
        "results": results,
        "usage": count,
        "meta": {
            "api_version": {"version": "2" if request.url.path.startswith("/v2/") else "1"},
            "billed_units": {"search_units": 1},
        },
    }
    return JSONResponse(answer)


async def score(request: Request, state: ServerState) -> Response:
    """How well texts fit together."""
    body, size = await read_request(request, state, ScoreRequest)
    firsts = [body.text_1] if isinstance(body.text_1, str) else body.text_1
    seconds = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    if len(firsts) == 1:
        firsts = firsts * len(seconds)
    if len(firsts) != len(seconds):
        raise BadRequestError(
            f"text_2: {len(seconds)} texts for {len(firsts)} of text_1; accepted: as many, or one"
            " text_1",
            param="text_2",
        )
    pairs = list(zip(firsts, seconds, strict=True))
    scores = await _score(pairs, body, "text_2", size, request, state, raw=False)
    return JSONResponse(
        _listed(
            "score",
            [
                {"object": "score", "index": index, "score": value}
                for index, value in enumerate(scores)
            ],
            body.model,
            scores.n_tokens,
            state,
        )
    )


async def classify(request: Request, state: ServerState) -> Response:
    """The classes of texts, each with the probability that the model gives it."""
    body, size = await read_request(request, state, ClassifyRequest)
    texts: list[Input] = [body.input] if isinstance(body.input, str) else list(body.input)
    found = await run(Wanted(inputs=texts, param="input", cut=body.cut), size, request, state)
    pooled, data = state.pooled, []
    for index, row in enumerate(found.rows):
        probs = pooled.probabilities(row.tolist())
        label = pooled.labels[int(np.argmax(row))]
        data.append({"index": index, "label": label, "probs": probs, "num_classes": len(probs)})
    return JSONResponse(_listed("classify", data, body.model, found.n_tokens, state))


async def _score(
    pairs: Sequence[tuple[str, str]],
    body: TextFields,
    param: str,
    size: int,
    request: Request,
    state: ServerState,
    *,
    raw: bool,
) -> Scores:
    if state.pooled.ranks:
        wanted = Wanted(inputs=pairs, param=param, cut=body.cut)
        found = await run(wanted, size * len(pairs), request, state)
        values = [float(row[0]) for row in found.rows]
        scores = Scores(values if raw else map(sigmoid, values))
        scores.n_tokens = found.n_tokens
        return scores
    return await _cosines(pairs, body, param, size, request, state)


async def _cosines(
    pairs: Sequence[tuple[str, str]],
    body: TextFields,
    param: str,
    size: int,
    request: Request,
    state: ServerState,
) -> Scores:
    """Of an embedder, with the prompts that it has for queries and documents."""
    queries = list(dict.fromkeys(first for first, _ in pairs))
    sides = (("query", queries, "query"), ("document", [text for _, text in pairs], param))
    scores, rows = Scores(), []
    for name, texts, of in sides:
        has = state.pooled.prompt(name) is not None
        wanted = Wanted(
            inputs=texts,
            param=of,
            cut=body.cut,
            prompt=PromptName(name if has else None),
            normalize=True,
        )
        found = await run(wanted, size, request, state)
        rows.append(shaped(found.rows, None, unit=True))
        scores.n_tokens += found.n_tokens
    at = {text: index for index, text in enumerate(queries)}
    for (first, _), row in zip(pairs, rows[1], strict=True):
        scores.append(float(np.dot(rows[0][at[first]].astype(np.float64), row)))
    return scores


def _listed(
    prefix: str, data: list[dict[str, Any]], model: str | None, n_tokens: int, state: ServerState
) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": "list",
        "created": int(time.time()),
        "model": model or state.model_name,
        "data": data,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }
