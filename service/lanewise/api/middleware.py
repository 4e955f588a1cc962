"""What happens to every request: an id, the key, counting, and no error without an object."""

import hmac
import logging
import time
import uuid
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lanewise.api.errors import InternalError, InvalidApiKeyError

logger = logging.getLogger(__name__)
access = logging.getLogger("lanewise.access")

LONGEST_REQUEST_ID = 128
METHODS = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"}
# Health, metrics and documentation stay open: probes and scrapers carry no keys.
GUARDED = ("/v1/", "/tokenize", "/detokenize", "/tokenizer_info")


class RequestMiddleware:
    """Pure ASGI, outside the router: costs two header look-ups and one clock reading."""

    def __init__(
        self, app: ASGIApp, *, api_keys: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self._app = app
        self._keys = [key.encode() for key in api_keys]
        self._requests = Counter(
            "http_requests", "Requests.", ["method", "handler", "status"], registry=registry
        )
        self._seconds = Histogram(
            "http_request_duration_seconds",
            "From the request's head to the answer's end.",
            ["method", "handler"],
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id"))
        began = time.monotonic()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        try:
            scope["client_number"] = client = self._client(headers) if self._keys else 0
            if client is None and _is_guarded(scope):
                error = InvalidApiKeyError("the API key is missing or wrong")
                await error.response()(scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                internal = InternalError("the server made a mistake; its log has the details")
                await internal.response()(scope, receive, send_with_id)
        finally:
            self._count(scope, status, time.monotonic() - began, request_id)

    def _client(self, headers: dict[bytes, bytes]) -> int | None:
        """Which of the keys was sent, if any."""
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        # Every key is compared, each in constant time.
        matches = [hmac.compare_digest(key.strip(), known) for known in self._keys]
        return matches.index(True) if scheme.lower() == b"bearer" and any(matches) else None

    def _count(self, scope: Scope, status: int, seconds: float, request_id: bytes) -> None:
        route = scope.get("route")
        handler = getattr(route, "path", "none")  # never the raw path: it may be anything
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._requests.labels(method, handler, str(status)).inc()
        self._seconds.labels(method, handler).observe(seconds)
        level = logging.DEBUG if handler.startswith(("/health", "/metrics")) else logging.INFO
        access.log(
            level,
            "%s %s %d %.3f s %s",
            scope["method"],
            scope["path"],
            status,
            seconds,
            request_id.decode(),
            extra={"request_id": request_id.decode()},
        )


def _is_guarded(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] != "OPTIONS" and path.startswith(GUARDED)


def _request_id(given: bytes | None) -> bytes:
    # A header that could break a log line or an answer is not passed on.
    if (
        given
        and len(given) <= LONGEST_REQUEST_ID
        and given.isascii()
        and given.decode().isprintable()
    ):
        return given
    return uuid.uuid4().hex.encode()
