"""What happens to every request: an id, the key, counting, and no error without an object."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Set
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lanewise.api.errors import (
    ApiError,
    InternalError,
    InvalidApiKeyError,
    RateLimitExceededError,
    UnavailableError,
    UnsupportedCodingError,
)
from lanewise.api.http.error_forms import ErrorForms
from lanewise.api.http.keys import ANYBODY, Keys
from lanewise.api.http.refusals import PROBED
from lanewise.api.http.web_pages import WebPages
from lanewise.api.observing.caller import Caller
from lanewise.api.observing.tracing import Tracer
from lanewise.api.shared.spending import Spending

logger = logging.getLogger(__name__)
access = logging.getLogger("lanewise.access")

MAX_REQUEST_ID = 128
LOGGED_PATH = 256  # characters: who asks for kilobytes of nothing fills no disk
METHODS = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"}


class RequestMiddleware:
    """Pure ASGI, outside the router: costs two header look-ups and one clock reading."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keys,
        pages: WebPages,
        public: Set[str],
        canonical: Callable[[str], str],
        errors: ErrorForms,
        registry: CollectorRegistry,
        asked: Iterable[tuple[str, str]] = (),
        tracer: Tracer | None = None,
        spending: Spending | None = None,
        counted: Set[tuple[str, str]] = frozenset(),
        model_of: Callable[[str | None], str] = str,
    ) -> None:
        """``counted`` are methods and paths of requests that count for ``spending``."""
        self._app = app
        self._spending, self._counted, self._model_of = spending, counted, model_of
        self._keys = keys
        self._pages = pages
        self._tracer = tracer
        self._public = public  # paths; all others want a key, those where nothing is too
        self._canonical = canonical  # of paths that clients may write otherwise
        self._errors = errors
        self._requests = Counter(
            "http_requests", "Requests.", ["method", "handler", "status"], registry=registry
        )
        # A series that begins with 1 has no rate: the first error of its kind would be no error.
        for (method, handler), status in product(asked, ("200", "500", "503", "529")):
            self._requests.labels(method, handler, status)
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
        given = dict(scope["headers"])
        request_id = _request_id(given.get(b"x-request-id"))
        began = time.monotonic()
        status = 0
        key = self._keys.find(given.get(b"authorization"), given.get(b"x-api-key"))
        caller = Caller(*(key or ANYBODY), scope["hold"])
        # The server's own scope stays as it was.
        scope = {**scope, "path": self._canonical(scope["path"]), "caller": caller}
        scope["request_id"] = request_id
        spending = self._spending
        if (scope["method"], scope["path"]) not in self._counted:
            spending = None
        span = None
        if self._tracer is not None:
            span = self._tracer.begin(_method(scope), scope["path"][:LOGGED_PATH], given)
            caller.trace_id = self._tracer.trace_id(span)
            caller.traceparent = self._tracer.written(span)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # Anthropic's clients show the second.
                ids = [(b"x-request-id", request_id), (b"request-id", request_id)]
                headers = [*ids, *caller.headers()]
                if spending is not None:
                    headers += spending.headers(caller, scope["path"])
                if caller.traceparent is not None:
                    # It tells the caller which trace its request is in.
                    headers.append((b"traceresponse", caller.traceparent))
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        async def refuse(error: ApiError) -> None:
            response = self._errors.response(error, scope["path"])
            await response(scope, receive, send_with_id)

        try:
            if foreign := self._pages.refusal(given.get(b"host"), given.get(b"origin")):
                await refuse(foreign)
            elif key is None and scope["path"] not in self._public:
                await refuse(InvalidApiKeyError("the API key is missing or wrong"))
            elif (coding := given.get(b"content-encoding", b"identity")).lower() != b"identity":
                shown = coding[:40].decode("latin-1")
                await refuse(
                    UnsupportedCodingError(
                        f"the body's content-encoding {shown!r} is not read;"
                        " accepted: none (identity)"
                    )
                )
            else:
                if spending is not None:
                    spending.enter(caller)
                await self._app(scope, receive, send_with_id)
        except RateLimitExceededError as error:
            await refuse(error)
        except asyncio.CancelledError:
            # The server ends and can wait no longer: who has no answer yet gets this one.
            if status:
                raise
            stopping = UnavailableError("the server is shutting down", headers={"retry-after": "1"})
            await refuse(stopping)
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                internal = InternalError("the server made a mistake; its log has the details")
                await refuse(internal)
        finally:
            if spending is not None:
                model = None if caller.record is None else caller.record.model
                spending.leave(caller, self._model_of(model))
            route = self._count(scope, caller, status, time.monotonic() - began, request_id)
            if self._tracer is not None and span is not None:
                self._tracer.end(span, route, status, caller.record)

    def _count(
        self, scope: Scope, caller: Caller, status: int, seconds: float, request_id: bytes
    ) -> str:
        """Count and log a request; the path of its endpoint."""
        route = scope.get("route")
        handler = getattr(route, "path", "none")  # never the raw path: it may be anything
        method = _method(scope)
        self._requests.labels(method, handler, str(status)).inc()
        example = None if caller.trace_id is None else {"trace_id": caller.trace_id}
        self._seconds.labels(method, handler).observe(seconds, example)
        level = logging.DEBUG if handler in PROBED else logging.INFO
        path, name = scope["path"][:LOGGED_PATH], request_id.decode()
        record = caller.record
        fields: dict[str, object] = {
            "method": scope["method"],
            "path": path,
            "status": status,
            "seconds": round(seconds, 6),
            "client": caller.number,
            **(example or {}),
            **(record.fields() if record is not None else {}),
        }
        access.log(
            level,
            "%s %s %d %.3f s %s%s",
            *(scope["method"], path, status, seconds, name),
            "" if record is None else f" {record}",
            extra={"request_id": name, "fields": fields},
        )
        return str(handler)


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in METHODS else "other"


def _request_id(given: bytes | None) -> bytes:
    # A header that could break a log line or an answer is not passed on.
    if given and len(given) <= MAX_REQUEST_ID and given.isascii() and given.decode().isprintable():
        return given
    return uuid.uuid4().hex.encode()
