"""The same in the words of text-embeddings-inference, Ollama and llama.cpp's server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.encoding.embeddings import inputs_of
from lanewise.api.encoding.fields import PromptFields, Texts, Truncate
from lanewise.api.encoding.running import Rows, Wanted, run
from lanewise.api.encoding.vectors import check_dimensions, shaped, written
from lanewise.api.generation.body import read_request
from lanewise.api.generation.writing import dumps
from lanewise.api.schemas import FirstProblemOnly, Strings, TokenIds
from lanewise.api.shared.state import ServerState
from lanewise.engine.text_queue import Floats


class TeiEmbedRequest(PromptFields):
    """Body of ``POST /embed``."""

    inputs: str | Strings | TokenIds | Annotated[list[TokenIds], FirstProblemOnly()]
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
    body, size = await read_request(request, state, TeiEmbedRequest)
    check_dimensions(body.dimensions, state.encoder.config.dims)
    wanted = Wanted(
        inputs=inputs_of(body.inputs, "inputs"),
        param="inputs",
        cut=body.cut,
        prompt=body.named_prompt,
        normalize=body.normalize,
    )
    found = await run(wanted, size, request, state)
    shape = partial(shaped, dimensions=body.dimensions, normalize=body.normalize)
    return await _write(found, lambda rows: f"[{rows}]", state, shape)


async def ollama_embed(request: Request, state: ServerState) -> Response:
    """Vectors of texts, of length 1."""
    began = time.perf_counter_ns()
    body, size = await read_request(request, state, OllamaEmbedRequest)
    check_dimensions(body.dimensions, state.encoder.config.dims)
    wanted = Wanted(
        inputs=inputs_of(body.input, "input"),
        param="input",
        cut=body.cut,
        prompt=body.named_prompt,
        normalize=True,
    )
    found = await run(wanted, size, request, state)
    model = dumps(body.model or state.model_name)

    def whole(rows: str) -> str:
        took = time.perf_counter_ns() - began
        counts = f'"total_duration":{took},"load_duration":0,"prompt_eval_count":{found.n_tokens}'
        return f'{{"model":{model},"embeddings":[{rows}],{counts}}}'

    shape = partial(shaped, dimensions=body.dimensions, normalize=True)
    return await _write(found, whole, state, shape)


async def ollama_embeddings(request: Request, state: ServerState) -> Response:
    """The vector of one text."""
    body, size = await read_request(request, state, OllamaEmbeddingsRequest)
    wanted = Wanted(inputs=[body.prompt], param="prompt", cut=body.cut, prompt=body.named_prompt)
    found = await run(wanted, size, request, state)
    return await _write(found, lambda rows: f'{{"embedding":{rows}}}', state)


async def llama_embedding(request: Request, state: ServerState) -> Response:
    """Vectors of texts, each in a list of its own."""
    body, size = await read_request(request, state, LlamaEmbeddingRequest)
    wanted = Wanted(
        inputs=inputs_of(body.content, "content"),
        param="content",
        cut=body.cut,
        normalize=body.embd_normalize == 2,
    )
    found = await run(wanted, size, request, state)

    def make() -> bytes:
        each = (
            f'{{"index":{index},"embedding":[{written(row)}]}}'
            for index, row in enumerate(found.rows)
        )
        return f"[{','.join(each)}]".encode()

    made = await state.workers.write(sum(row.size for row in found.rows), make)
    return Response(made, media_type="application/json")


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


async def _write(
    found: Rows,
    whole: Callable[[str], str],
    state: ServerState,
    shape: Callable[[Sequence[Floats]], Sequence[Floats]] = lambda rows: rows,
) -> Response:
    def make() -> bytes:
        text = whole(",".join(map(written, shape(found.rows))))
        return text.encode()

    body = await state.workers.write(sum(row.size for row in found.rows), make)
    return Response(body, media_type="application/json")
