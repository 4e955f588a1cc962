"""Reads a request's body: bounded while it arrives, UTF-8, JSON, and what the schema says."""

from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from lanewise.api.errors import (
    BadRequestError,
    BodyTooLargeError,
    ModelNotFoundError,
    from_validation,
)
from lanewise.api.schemas import Strict
from lanewise.api.state import ServerState
from lanewise.engine.adapters import LoadedAdapter

M = TypeVar("M", bound=Strict)

MOST_DISCARDED = 4  # times the largest body


async def read_request(request: Request, state: ServerState, schema: type[M]) -> M:
    """The checked body of a request that names a model that is here, or none."""
    body = await _read_bytes(request, state.max_body_bytes)
    parsed = await state.off_loop(len(body), lambda: parse(body, schema))
    find_adapter(getattr(parsed, "model", None), state)
    return parsed


def find_adapter(model: str | None, state: ServerState) -> LoadedAdapter | None:
    """The adapter that a request's model is; None for the served model, which needs no name.

    Raises ModelNotFoundError for any other name.
    """
    if not model or model == state.model_name:
        return None
    adapter = state.adapter_named(model)
    if adapter is None:
        raise ModelNotFoundError.of(model, state.model_names)
    return adapter


async def _read_bytes(request: Request, limit: int) -> bytes:
    announced = request.headers.get("content-length", "")
    size = int(announced[:20]) if announced.isascii() and announced.isdigit() else 0
    chunks: list[bytes] = []
    received = 0
    try:
        async for chunk in request.stream():
            received += len(chunk)
            size = max(size, received)
            if size <= limit:
                chunks.append(chunk)
                continue
            # Who is still sending when the connection closes never sees the answer: what is too
            # large is read, but not kept, up to a bound.
            chunks.clear()
            if size > MOST_DISCARDED * limit:
                break
    except ClientDisconnect:
        raise BadRequestError("the client left before the body was complete") from None
    if size > limit:
        raise _too_large(size, limit)
    return b"".join(chunks)


def _too_large(size: int, limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body has {size} bytes or more; this server reads {limit}")


def parse(body: bytes, schema: type[M]) -> M:
    """The body as the schema's object, or a BadRequestError that says what is wrong."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequestError(
            f"the body is not UTF-8: byte 0x{body[error.start]:02x} at offset {error.start}"
        ) from None
    try:
        data = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from None
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise from_validation(error) from None
    except RecursionError:
        raise BadRequestError("the body is nested too deeply") from None
