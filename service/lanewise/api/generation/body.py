"""Reads a request's body: bounded while it arrives, UTF-8, JSON, and what the schema says."""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from lanewise.api.errors import (
    BadRequestError,
    BodyTooLargeError,
    ModelNotFoundError,
    from_validation,
)
from lanewise.api.generation.call import Call
from lanewise.api.http.limits import Hold
from lanewise.api.observing.caller import caller_of
from lanewise.api.schemas import Strict
from lanewise.api.shared.request_budgets import check_parts
from lanewise.api.shared.state import ServerState
from lanewise.engine.base.adapters import LoadedAdapter
from lanewise.text.surrogates import as_characters

M = TypeVar("M", bound=Strict)
LATEST = ":latest"  # the tag of a model's name that has none


async def read_request(
    request: Request,
    state: ServerState,
    schema: type[M],
    check: Callable[[M], None] = lambda body: None,
) -> Call[M]:
    """The body of a request that names a model that is here, or none; ``check`` may raise.

    The client is told of fields that are ignored, where the schema says which are harmless.
    """
    caller = caller_of(request.scope)
    body = await read_bytes(request, state.max_body_bytes)

    def read() -> tuple[M, list[str]]:
        data = parse_json(body, caller.hold)
        parsed = validate(data, schema)
        check(parsed)
        return parsed, schema.unknown(data)

    parsed, unknown = await state.workers.read(len(body), read)
    caller.hold.body_is_read()
    caller.tell_unknown(unknown)
    find_adapter(getattr(parsed, "model", None), state)
    return Call(parsed, len(body), state, caller, request.receive)


def find_adapter(model: str | None, state: ServerState) -> LoadedAdapter | None:
    """The adapter that a request's model is; None for the served model, which needs no name.

    Ollama's clients write ``:latest`` behind names without a tag. Raises ModelNotFoundError for any
    other name.
    """
    if not model:
        return None
    for name in (model, model.removesuffix(LATEST), model + LATEST):
        if name in state.names:
            return None
        adapter = state.adapter_named(name)
        if adapter is not None:
            return adapter
    raise ModelNotFoundError.of(model, state.model_names)


async def read_bytes(request: Request, limit: int) -> bytes:
    """The body of a request, of which no more than ``limit`` bytes are kept."""
    announced = request.headers.get("content-length", "")
    size = int(announced[:20]) if announced.isascii() and announced.isdigit() else 0
    hold = caller_of(request.scope).hold
    chunks: list[bytes] = []
    received, more = 0, True
    while more and size <= limit:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise BadRequestError("the client left before the body was complete")
        if hold.refusal is not None:
            chunks.clear()  # the error's traceback would keep them
            raise hold.refusal()
        chunks.append(message["body"])
        more = message["more_body"]
        received += len(message["body"])
        size = max(size, received)
    if size > limit:
        chunks.clear()
        # The rest is read, and dropped, by the connection.
        raise _too_large(size, limit)
    return b"".join(chunks)


def _too_large(size: int, limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body has {size} bytes or more; this server reads {limit}")


def parse_json(body: bytes, hold: Hold) -> Any:
    """What the body's JSON says, for which ``hold`` must have room; or a BadRequestError."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequestError(
            f"the body is not UTF-8: byte 0x{body[error.start]:02x} at offset {error.start}"
        ) from None
    hold.keep(check_parts(text))
    try:
        return _from_json(text)
    except ValueError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from None


def validate(data: Any, schema: type[M]) -> M:
    """The schema's object of a body's JSON, or a BadRequestError that names the first problem."""
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        raise from_validation(error) from None
    except RecursionError:
        raise BadRequestError("the body is nested too deeply") from None


def _from_json(text: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        mended = as_characters(text)
        if mended == text:
            raise
    return from_json(mended, allow_inf_nan=False)
