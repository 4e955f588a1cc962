"""What a connection tells whom it turns away before any endpoint sees the request."""

from lanewise.api.errors import (
    ApiError,
    BadRequestError,
    HeadTooLargeError,
    NotSupportedError,
    SlowClientError,
    TargetTooLongError,
    UnavailableError,
)
from lanewise.api.http.limits import RETRY_AFTER_S

MAX_FIELDS = 128  # of a head
MAX_TARGET = 8 << 10  # bytes; RFC 9112 wants 8,000
# Fields that a head has once: of two, one reader takes the first and another the last.
SINGLE = frozenset(
    b"host authorization x-api-key content-length transfer-encoding content-type content-encoding"
    b" origin expect traceparent".split()
)
# Paths that tell how the server is: to who has no key, and beyond the limit of connections.
PROBED = ("/health", "/health/live", "/health/ready", "/v1/health", "/ping", "/metrics")


def not_http() -> ApiError:
    """Bytes that no HTTP client sends."""
    return BadRequestError("this is not HTTP/1.1 as RFC 9112 wants it", code="invalid_http")


def twice(name: bytes) -> ApiError:
    """A field that a head has only once."""
    return BadRequestError(f"the head has the field {name.decode()!r} twice", code="invalid_http")


def no_host() -> ApiError:
    """HTTP/1.1 without its one necessary field."""
    return BadRequestError("the head has no field 'host'", code="invalid_http")


def too_many_ahead() -> ApiError:
    """More pipelined requests than wait for their turn."""
    return BadRequestError("too many requests are sent ahead of their answers")


def target_too_long() -> ApiError:
    """A path and query of many bytes."""
    return TargetTooLongError(
        f"the request's target has more than {MAX_TARGET} bytes, which is the most"
    )


def unknown_coding(name: bytes) -> ApiError:
    """A transfer coding other than chunked."""
    shown = name[:40].decode("latin-1")
    return NotSupportedError(f"the transfer coding {shown!r} is not supported; use chunked")


def head_too_large(max_head_bytes: int) -> ApiError:
    """A head of many bytes or fields."""
    return HeadTooLargeError(
        f"the request's head is too large; accepted: at most {max_head_bytes} bytes"
        f" (max_head_bytes) and {MAX_FIELDS} fields"
    )


def bad_chunks(why: str) -> ApiError:
    """Chunks that cost more than what is in them."""
    return BadRequestError(f"the chunks of the body cannot be read: {why}", code="invalid_chunks")


def too_slow(part: str, seconds: float) -> ApiError:
    """A part of a request that was not complete in time."""
    return SlowClientError(
        f"the request's {part} was not complete within {seconds:g} s ({part}_timeout_s)"
    )


def shutting_down() -> ApiError:
    """A request that is not complete when the server ends."""
    return UnavailableError("the server is shutting down", headers={"retry-after": "1"})


def no_place(max_connections: int) -> ApiError:
    """One connection more than there may be."""
    return UnavailableError(
        f"{max_connections} connections are open, which is the most (max_connections)",
        code="too_many_connections",
        headers={"retry-after": RETRY_AFTER_S},
    )
