"""The same in the words of text-embeddings-inference, Ollama and llama.cpp's server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.encoding.fields import PromptFields, Texts, Truncate
from lanewise.api.encoding.vectors import answer, wanted_of
from lanewise.api.generation.body import read_request
from lanewise.api.generation.writing import dumps
from lanewise.api.schemas import Strings
from lanewise.api.shared.state import ServerState


class TeiEmbedRequest(PromptFields):
    """Body of ``POST /embed``."""

    inputs: Texts
    normalize: bool = True
    dimensions: int | None = Field(None, ge=1)


class OllamaEmbedRequest(PromptFields):
    """Body of ``POST /api/embed``."""

    input: str | Strings
    truncate: Truncate = True
    dimensions: int | None = Field(None, ge=1)


class OllamaEmbeddingsRequest(PromptFields):
    """Body of ``POST /api/embeddings``, the older one."""

    prompt: str
    truncate: Truncate = True


class LlamaEmbeddingRequest(PromptFields):
    """Body of ``POST /embedding``."""

    content: Texts
    embd_normalize: Literal[-1, 2] = Field(2, description="2: to length 1; -1: not at all.")


async def tei_embed(request: Request, state: ServerState) -> Response:
    """Vectors of texts, and nothing else."""
    call = await read_request(request, state, TeiEmbedRequest)
    body = call.ask
    wanted = wanted_of(
        *(body, "inputs", body.inputs), dimensions=body.dimensions, normalize=body.normalize
    )
    return await answer(call, wanted, lambda rows, _: f"[{','.join(rows)}]")


async def ollama_embed(request: Request, state: ServerState) -> Response:
    """Vectors of texts, of length 1."""
    began = time.perf_counter_ns()
    call = await read_request(request, state, OllamaEmbedRequest)
    body = call.ask
    wanted = wanted_of(body, "input", body.input, dimensions=body.dimensions, normalize=True)

    def whole(rows: Iterator[str], n_tokens: int) -> str:
        vectors = ",".join(rows)
        model = dumps(body.model or state.model_name)
        took = time.perf_counter_ns() - began
        counts = f'"total_duration":{took},"load_duration":0,"prompt_eval_count":{n_tokens}'
        return f'{{"model":{model},"embeddings":[{vectors}],{counts}}}'

    return await answer(call, wanted, whole)


async def ollama_embeddings(request: Request, state: ServerState) -> Response:
    """The vector of one text."""
    call = await read_request(request, state, OllamaEmbeddingsRequest)
    body = call.ask
    wanted = wanted_of(body, "prompt", body.prompt)
    return await answer(call, wanted, lambda rows, _: f'{{"embedding":{next(rows)}}}')


async def llama_embedding(request: Request, state: ServerState) -> Response:
    """Vectors of texts, each in a list of its own."""
    call = await read_request(request, state, LlamaEmbeddingRequest)
    body = call.ask
    wanted = wanted_of(body, "content", body.content, normalize=body.embd_normalize == 2)

    def whole(rows: Iterator[str], _: int) -> str:
        each = (f'{{"index":{index},"embedding":[{row}]}}' for index, row in enumerate(rows))
        return f"[{','.join(each)}]"

    return await answer(call, wanted, whole)


async def tei_info(_: Request, state: ServerState) -> Response:
    """What the model is, in the words of text-embeddings-inference."""
    pooled, card = state.pooled, state.card
    kind: dict[str, Any] = {"embedding": {"pooling": pooled.pooling}}
    if pooled.labels:
        labels = dict(enumerate(pooled.labels))
        ids = {label: index for index, label in labels.items()}
        kind = {"reranker" if pooled.ranks else "classifier": {"id2label": labels, "label2id": ids}}
    return JSONResponse(
        {
            "model_id": state.model_name,
            "model_sha": None,
            "model_dtype": state.engine.metrics.facts.weights,
            "model_type": kind,
            "max_concurrent_requests": state.encoder.config.max_requests,
            "max_input_length": state.max_model_len,
            "max_batch_tokens": state.encoder.config.max_step_tokens,
            "max_batch_requests": state.encoder.config.max_step_texts,
            "max_client_batch_size": state.request_budgets.max_texts,
            "auto_truncate": False,
            "prompts": dict(pooled.prompts),
            "architecture": card.architecture,
            "version": state.version,
        }
    )
