"""``/v1/embeddings`` and ``/pooling``: vectors in OpenAI's and vLLM's words."""

from __future__ import annotations

import secrets
import time
from typing import Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from lanewise.api.encoding.fields import PromptFields, Texts
from lanewise.api.encoding.running import Input, Rows, Wanted, run
from lanewise.api.encoding.vectors import check_dimensions, in_pieces, shaped
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.body import read_request
from lanewise.api.generation.writing import dumps
from lanewise.api.shared.state import ServerState


class EmbeddingRequest(PromptFields):
    """Body of ``POST /v1/embeddings``."""

    input: Texts
    dimensions: int | None = Field(None, ge=1, description="The first so many, of length 1 again.")
    encoding_format: Literal["float", "base64"] = "float"
    normalize: bool | None = Field(None, description="To length 1; else as the model says.")
    embed_dtype: Literal["float32"] = "float32"


class PoolingRequest(PromptFields):
    """Body of ``POST /pooling``: a vector for each text, or with token_embed for each token."""

    input: Texts
    task: Literal["embed", "token_embed"] = "embed"
    encoding_format: Literal["float", "base64"] = "float"
    normalize: bool | None = None
    dimensions: int | None = Field(None, ge=1)


def inputs_of(given: Texts, param: str) -> list[Input]:
    """The texts in one form, whichever of the four they came in."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise BadRequestError(f"{param}: the list is empty", param=param)
    return [given] if isinstance(given[0], int) else list(given)


async def embeddings(request: Request, state: ServerState) -> Response:
    """Vectors of texts."""
    body, size = await read_request(request, state, EmbeddingRequest)
    check_dimensions(body.dimensions, state.encoder.config.dims)
    found = await run(
        Wanted(
            inputs=inputs_of(body.input, "input"),
            param="input",
            cut=body.cut,
            prompt=body.named_prompt,
            normalize=body.normalize,
        ),
        size,
        request,
        state,
    )
    return await _answer(found, body, "embedding", state)


async def pooling(request: Request, state: ServerState) -> Response:
    """Vectors of texts, or of their tokens."""
    body, size = await read_request(request, state, PoolingRequest)
    check_dimensions(body.dimensions, state.encoder.config.dims)
    found = await run(
        Wanted(
            inputs=inputs_of(body.input, "input"),
            param="input",
            cut=body.cut,
            prompt=body.named_prompt,
            pooling="none" if body.task == "token_embed" else None,
            normalize=body.normalize,
        ),
        size,
        request,
        state,
    )
    return await _answer(found, body, "data", state)


async def _answer(
    found: Rows, body: EmbeddingRequest | PoolingRequest, key: str, state: ServerState
) -> Response:
    kind = "embedding" if key == "embedding" else "pooling"

    def make() -> bytes:
        rows = in_pieces(shaped(found.rows, body.dimensions, body.normalize), body.encoding_format)
        data = ",".join(
            f'{{"object":"{kind}","index":{index},"{key}":{row}}}' for index, row in enumerate(rows)
        )
        name = dumps(body.model or state.model_name)
        usage = dumps({"prompt_tokens": found.n_tokens, "total_tokens": found.n_tokens})
        head = f'"id":"embd-{secrets.token_hex(12)}","created":{int(time.time())}'
        return f'{{"object":"list",{head},"data":[{data}],"model":{name},"usage":{usage}}}'.encode()

    made = await state.workers.write(sum(row.size for row in found.rows), make)
    return Response(made, media_type="application/json")
