"""``/v1/embeddings`` and ``/pooling``: vectors in OpenAI's and vLLM's words."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from lanewise.api.encoding.fields import PromptFields, Texts
from lanewise.api.encoding.vectors import answer, encoded, wanted_of, written
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.body import read_request
from lanewise.api.generation.call import Call
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
    task: Literal["embed", "token_embed"] | None = Field(
        None, description="A vector of each text, or of each token; else as the model makes them."
    )
    encoding_format: Literal["float", "base64"] = "float"
    normalize: bool | None = None
    dimensions: int | None = Field(None, ge=1)


async def embeddings(request: Request, state: ServerState) -> Response:
    """Vectors of texts."""
    call = await read_request(request, state, EmbeddingRequest)
    return await _answer(call, "embedding", "embedding")


async def pooling(request: Request, state: ServerState) -> Response:
    """Vectors of texts, or of their tokens."""
    call = await read_request(request, state, PoolingRequest)
    if call.ask.task == "embed" and state.pooled.compared is not None:
        raise BadRequestError(
            "task: 'embed' is not what this model does; accepted: 'token_embed'", param="task"
        )
    pooled = "none" if call.ask.task == "token_embed" else None
    return await _answer(call, "pooling", "data", pooled)


async def _answer(
    call: Call[EmbeddingRequest | PoolingRequest],
    kind: str,
    key: str,
    pooling: str | None = None,
) -> Response:
    body = call.ask
    wanted = wanted_of(
        *(body, "input", body.input),
        dimensions=body.dimensions,
        normalize=body.normalize,
        pooling=pooling,
    )

    def whole(rows: Iterator[str], n_tokens: int) -> str:
        data = ",".join(
            f'{{"object":"{kind}","index":{index},"{key}":{row}}}' for index, row in enumerate(rows)
        )
        name = dumps(body.model or call.state.model_name)
        usage = dumps({"prompt_tokens": n_tokens, "total_tokens": n_tokens})
        head = f'"id":"embd-{secrets.token_hex(12)}","created":{int(time.time())}'
        return f'{{"object":"list",{head},"data":[{data}],"model":{name},"usage":{usage}}}'

    write = encoded if body.encoding_format == "base64" else written
    return await answer(call, wanted, whole, write)
