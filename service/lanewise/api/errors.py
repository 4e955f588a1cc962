"""Errors as OpenAI clients expect them: one object with message, type, param and code.

ApiError
 ├─ BadRequestError             400, param names the field
 ├─ ContextLengthExceededError  400 context_length_exceeded
 ├─ InvalidApiKeyError          401 invalid_api_key
 ├─ ForbiddenError              403 forbidden
 ├─ NotFoundError               404, what is asked for is not here (any more)
 ├─ ModelNotFoundError          404 model_not_found
 ├─ SlowClientError             408 slow_client
 ├─ BodyTooLargeError           413 request_too_large
 ├─ TargetTooLongError          414 uri_too_long
 ├─ ClientGoneError             499, for a client that is gone
 ├─ RateLimitExceededError      429 rate_limit_exceeded, with Retry-After
 ├─ HeadTooLargeError           431 request_header_fields_too_large
 ├─ InternalError               500 internal_error
 ├─ NotSupportedError           501 not_implemented, also of an unknown transfer coding
 ├─ NoRoomError                 507 disk_full
 ├─ UnavailableError            503 service_unavailable, queue_timeout, too_many_connections or
 │                                  too_much_memory, with Retry-After
 └─ RequestTimeoutError         504 request_timeout
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import ValidationError

# A message may name what a request brought, which may be megabytes.
MAX_MESSAGE = 2000
MAX_SHOWN = 60
MAX_NAMED = 20  # models


class ApiError(Exception):
    """An error with everything its HTTP answer needs; a message that is too long is cut."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = cut(message, MAX_MESSAGE)
        super().__init__(message)
        self.message = message
        self.param = None if param is None else cut(param, MAX_MESSAGE)
        self.code = code or self.code
        self.headers = headers

    def body(self) -> dict[str, Any]:
        """The error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def event(self) -> bytes:
        """The error as an event of a stream that has already begun."""
        return b"data: " + json.dumps(self.body(), ensure_ascii=False).encode() + b"\n\n"


class BadRequestError(ApiError):
    """A field has a value that cannot be used."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceededError(BadRequestError):
    """Prompt and answer are longer than the context."""

    code = "context_length_exceeded"

    def __init__(self, message: str, *, param: str, tokens: int, limit: int) -> None:
        super().__init__(message, param=param)
        self.tokens = tokens  # that were asked for, at least
        self.limit = limit


class UnsupportedCodingError(ApiError):
    """A body is compressed, or coded otherwise."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_content_encoding"


class InvalidApiKeyError(ApiError):
    """No key, or a wrong one."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class ForbiddenError(ApiError):
    """The server was not started to do this."""

    status = 403
    type = "invalid_request_error"
    code = "forbidden"


class NotFoundError(ApiError):
    """Something is asked for by an id that nothing here has."""

    status = 404
    type = "invalid_request_error"


class ModelNotFoundError(ApiError):
    """Another model is asked for than what is served."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"

    @classmethod
    def of(cls, name: str, known: Sequence[str]) -> Self:
        """The error for a model's name, which says those there are."""
        shown = ", ".join(map(repr, known[:MAX_NAMED]))
        if len(known) > MAX_NAMED:
            shown += f" and {len(known) - MAX_NAMED} more"
        name = cut(name, MAX_SHOWN)
        return cls(f"the model {name!r} is not here; this server has {shown}", param="model")


class SlowClientError(ApiError):
    """The request did not arrive in time."""

    status = 408
    type = "timeout_error"
    code = "slow_client"


class BodyTooLargeError(ApiError):
    """The request body is larger than the server reads."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class TargetTooLongError(ApiError):
    """The request's target is longer than any that is served."""

    status = 414
    type = "invalid_request_error"
    code = "uri_too_long"


class ClientGoneError(ApiError):
    """The client does not wait for the answer any more."""

    status = 499
    type = "invalid_request_error"


class RateLimitExceededError(ApiError):
    """The queue is full."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class HeadTooLargeError(ApiError):
    """The request's head is larger than the server reads."""

    status = 431
    type = "invalid_request_error"
    code = "request_header_fields_too_large"


class NotSupportedError(ApiError):
    """The request is valid for other servers, but this server cannot do it."""

    status = 501
    type = "invalid_request_error"
    code = "not_implemented"


class InternalError(ApiError):
    """The model failed; the request is not at fault."""

    code = "internal_error"


class UnavailableError(ApiError):
    """The server is shutting down, not ready, or too busy to begin in time."""

    status = 503
    type = "service_unavailable_error"
    code = "service_unavailable"


class NoRoomError(ApiError):
    """There is no room on the server's disk."""

    status = 507
    type = "server_error"
    code = "disk_full"


class RequestTimeoutError(ApiError):
    """The request took longer than requests may; asked again, it would again."""

    status = 504
    type = "timeout_error"
    code = "request_timeout"


def from_validation(error: ValidationError) -> BadRequestError:
    """The first problem of a request, in words that name the field."""
    problems = error.errors(include_url=False)
    # A value that fits no branch of a union gives one problem for each branch; the branch that got
    # furthest into the value is the one that was meant.
    first = [problem for problem in problems if problem["loc"][:1] == problems[0]["loc"][:1]]
    location = max((_location(problem) for problem in first), key=_progress)
    told = [problem for problem in first if _location(problem) == location]
    if told[0]["type"] == "refused":
        return BadRequestError(told[0]["msg"], param=told[0]["ctx"]["param"])
    param = _path(location)
    if told[0]["type"] == "missing":
        return BadRequestError(f"{param} is required", param=param)
    reasons = dict.fromkeys(_reason(problem["msg"]) for problem in told)
    message = " or ".join(reasons)
    if not param:
        return BadRequestError(f"the body {message}")
    shown = _shown(told[0]["input"])
    return BadRequestError(f"{param}: {message}; got {shown}", param=param)


def _location(problem: Any) -> tuple[str | int, ...]:
    """Where in the request, without pydantic's names for the branches of unions."""
    return tuple(part for part in problem["loc"] if part != "str" and "[" not in str(part))


def _progress(location: tuple[str | int, ...]) -> tuple[int, int]:
    return len(location), max((part for part in location if isinstance(part, int)), default=-1)


def _reason(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _path(location: tuple[str | int, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _shown(value: object) -> str:
    """The beginning of a value as JSON; the rest of it is not written at all."""
    text = ""
    if isinstance(value, str):
        value = value[:MAX_SHOWN]
    # Piece by piece, which dumps does not do.
    for piece in json.JSONEncoder(ensure_ascii=False, default=str).iterencode(value):
        text += piece[:MAX_SHOWN]
        if len(text) > MAX_SHOWN:
            break
    return cut(text, MAX_SHOWN)


def cut(text: str, longest: int) -> str:
    """A text, or its beginning if it is longer."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
