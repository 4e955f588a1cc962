"""The HTTP application of the router: finds a request's model, and passes bytes both ways."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from lanewise import __version__
from lanewise.api.endpoints import documents, guide, page
from lanewise.api.endpoints.paths import Paths
from lanewise.api.endpoints.table import ENDPOINTS, error_forms
from lanewise.api.errors import (
    ApiError,
    InternalError,
    ModelNotFoundError,
    UnavailableError,
)
from lanewise.api.generation.body import read_bytes
from lanewise.api.generation.writing import utc_time
from lanewise.api.http.refusals import shutting_down
from lanewise.api.observing.caller import caller_of
from lanewise.router.endpoints import NOT_LOADED, OWN, Owned, busy, get_model
from lanewise.router.exchange import HOP_BY_HOP, Exchange, ServerGoneError
from lanewise.router.fleet import BusyError, Fleet
from lanewise.router.naming import SMALL_BYTES, named_in
from lanewise.router.process import Child, LoadError
from lanewise.router.slot import Slot
from lanewise.router.staying import Stay, stay_of

# Of the router's own server, or answered by it.
DROPPED = frozenset({b"content-length", b"x-request-id", b"origin"})
OF_THE_SERVER = frozenset({b"x-request-id", b"request-id", b"date", b"server"})
TRACEPARENT, TRACERESPONSE = b"traceparent", b"traceresponse"
PATHS = {endpoint.path for endpoint in ENDPOINTS} | {path for _, path in OWN}
MODEL = "/v1/models/"
EVENTS, LINES = b"text/event-stream", b"application/x-ndjson"


class Known:
    """What metrics call a path."""

    def __init__(self, path: str) -> None:
        self.path = path


class Router:
    """An ASGI application whose answers are those of the models' servers, or its own."""

    owned: Owned  # set once the metrics of the server are there

    def __init__(self, fleet: Fleet, max_body_bytes: int, own_page: page.Page) -> None:
        self._fleet, self._max_body_bytes = fleet, max_body_bytes
        self._paths = Paths(ENDPOINTS)
        # As in a server of one model.
        described = documents.Documents(__version__).answer
        self._static: dict[str, Callable[[Request], Awaitable[Response]]] = {
            **dict.fromkeys(page.FILES, own_page.answer),
            **dict.fromkeys(guide.PATHS, guide.answer),
            **dict.fromkeys(documents.PATHS, described),
        }
        self._errors = error_forms()
        self.answering = 0  # requests
        self.is_refusing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        request = Request(scope, receive)
        if scope["method"] in ("GET", "HEAD") and (static := self._static.get(path)):
            scope["route"] = Known(path)
            response = await static(request)
            await response(scope, receive, send)
            return
        own = OWN.get((scope["method"], path))
        if own is None and scope["method"] == "GET" and path.startswith(MODEL):
            own = get_model
        if own is not None or path in PATHS:
            scope["route"] = Known(path if path in PATHS else MODEL)
        try:
            if own is not None:
                response = await own(self.owned, request)
                await response(scope, receive, send)
                return
            if self.is_refusing:
                raise shutting_down()
            # Before anything is loaded for it.
            if (refused := self._paths.refusal(scope["method"], path)) is not None:
                raise refused
            self.answering += 1
            try:
                await self._pass(request, send)
            finally:
                self.answering -= 1
        except ApiError as error:
            await self._errors.response(error, path)(scope, receive, send)

    async def _pass(self, request: Request, send: Send) -> None:
        body = await read_bytes(request, self._max_body_bytes)
        slot = await self._slot_of(request, body)
        stay = self._stay_of(request, slot, body)
        if stay is not None and stay.is_goodbye:
            if slot.child is not None:
                slot.stays_s = stay.seconds
            await self._say_goodbye(request, slot, send)
            return
        async with _until_gone(request.receive):
            await self._answer(slot, request, body, stay, send)

    async def _slot_of(self, request: Request, body: bytes) -> Slot:
        asked = request.scope["query_string"]
        name = request.query_params.get("model") if asked else None
        if name is None and body:
            is_ollama = request.scope["path"].startswith("/api/")
            keys = ("model", "name") if is_ollama else ("model",)
            if len(body) <= SMALL_BYTES:
                name = named_in(body, keys)
            else:
                name = await asyncio.to_thread(named_in, body, keys)
        try:
            slot = self._fleet.find(name)
        except BusyError as error:
            raise busy(error) from None
        if slot is None:
            known = self._fleet.names
            if name:
                raise ModelNotFoundError.of(name, known)
            shown = ", ".join(map(repr, known[:20]))
            raise ModelNotFoundError(
                f"model is required: there are several and no default; accepted: {shown}",
                param="model",
            )
        return slot

    def _stay_of(self, request: Request, slot: Slot, body: bytes) -> Stay | None:
        stay = stay_of(request.scope["path"], body)
        if stay is None:
            return None
        why = None
        if not self.owned.may_change(request):
            why = "it is an administrator's"
        elif slot.entry.pinned:
            why = f"{slot.entry.name} is pinned"
        if why is not None:
            caller_of(request.scope).tell(f"keep_alive is ignored: {why}")
            return None
        return stay

    async def _say_goodbye(self, request: Request, slot: Slot, send: Send) -> None:
        """What Ollama says of a model that is to go; one that has gone is not loaded to say it."""
        said: dict[str, object] = {"message": {"role": "assistant", "content": ""}}
        if request.scope["path"] == "/api/generate":
            said = {"response": ""}
        about = {"model": slot.entry.name, "created_at": utc_time(time.time())}
        response = JSONResponse({**about, **said, "done": True, "done_reason": "unload"})
        await response(request.scope, request.receive, send)

    async def _answer(
        self, slot: Slot, request: Request, body: bytes, stay: Stay | None, send: Send
    ) -> None:
        scope = request.scope
        async with self._child(slot, caller_of(scope).number) as child:
            if stay is not None:
                slot.stays_s = stay.seconds
            target = scope["raw_path"]
            if scope["query_string"]:
                target += b"?" + scope["query_string"]
            fields = [one for one in scope["headers"] if one[0] not in DROPPED]
            fields.append((b"x-request-id", scope["request_id"]))
            if (traced := caller_of(scope).traceparent) is not None:
                # The model's span is below the router's, not beside it.
                fields = [one for one in fields if one[0] != TRACEPARENT]
                fields.append((TRACEPARENT, traced))
            if body or scope["method"] in ("POST", "PUT", "PATCH"):
                fields.append((b"content-length", b"%d" % len(body)))
            try:
                exchange = await child.line.ask(scope["method"], target, fields, body)
            except ServerGoneError:
                raise await _ended(slot, child) from None
            caller_of(scope).hold.body_is_read()
            try:
                await self._stream(slot, child, exchange, request, send)
                slot.failures = 0
            finally:
                child.line.give_back(exchange)

    async def _stream(
        self, slot: Slot, child: Child, exchange: Exchange, request: Request, send: Send
    ) -> None:
        kind = dict(exchange.headers).get(b"content-type", b"")
        drop = HOP_BY_HOP | OF_THE_SERVER
        if caller_of(request.scope).traceparent is not None:
            drop |= {TRACERESPONSE}
        headers = [one for one in exchange.headers if one[0] not in drop]
        start = {"type": "http.response.start", "status": exchange.status, "headers": headers}
        await send(cast(Message, start))
        # Pieces that come while this task waits go on without it: it would take as long again.
        exchange.sink = request.scope.get("pass_on") if request.method != "HEAD" else None
        try:
            while some := await exchange.more():
                # What ends an answer goes with its last bytes: a write costs more than all else.
                more = not exchange.is_over
                await send({"type": "http.response.body", "body": some, "more_body": more})
                if not more:
                    return
        except ServerGoneError:
            # A whole answer that breaks off is not ended, so that no client thinks it is whole.
            last = self._last_words(await _ended(slot, child), request.scope["path"], kind)
            await send({"type": "http.response.body", "body": last, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _last_words(self, error: ApiError, path: str, kind: bytes) -> bytes:
        form = self._errors.at(path)
        said = bytes(form.response(error).body)
        if kind.startswith(EVENTS):
            name = b"event: error\n" if form.name != "Error" else b""
            return name + b"data: " + said + b"\n\n"
        if kind.startswith(LINES):
            return said + b"\n"
        raise error

    @asynccontextmanager
    async def _child(self, slot: Slot, key: int) -> AsyncIterator[Child]:
        using = self._fleet.using(slot, key)
        try:
            child = await using.__aenter__()
        except BusyError as error:
            raise busy(error) from None
        except LoadError as error:
            message = f"{slot.entry.name} could not be loaded: {error}"
            raise UnavailableError(message, code=NOT_LOADED) from None
        try:
            yield child
        finally:
            await using.__aexit__(None, None, None)


async def _ended(slot: Slot, child: Child) -> ApiError:
    """What requests are told whose server went away."""
    await asyncio.wait({child.ended}, timeout=1.0)
    name = slot.entry.name
    if child.ended.done():
        why = f"the server of {name} ended before it answered: {child.ended.result()}"
        return UnavailableError(why, code="model_ended", headers={"retry-after": "2"})
    return InternalError(f"the server of {name} closed its connection without an answer")


@asynccontextmanager
async def _until_gone(receive: Receive) -> AsyncIterator[None]:
    """A client that goes takes its request with it, whether it waits or is answered."""
    work, has_gone = asyncio.current_task(), False
    assert work is not None

    def end(leaving: asyncio.Task[None]) -> None:
        nonlocal has_gone
        if not leaving.cancelled():
            has_gone = True
            work.cancel()

    leaving = asyncio.create_task(_gone(receive))
    leaving.add_done_callback(end)
    try:
        yield
    except asyncio.CancelledError:
        if not has_gone:
            raise
        work.uncancel()
    finally:
        leaving.remove_done_callback(end)
        leaving.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
