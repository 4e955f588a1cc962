"""The HTTP application of the router: finds a request's model, and passes bytes both ways."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from lanewise.api.endpoints import page
from lanewise.api.endpoints.table import ENDPOINTS, error_forms
from lanewise.api.errors import (
    ApiError,
    InternalError,
    ModelNotFoundError,
    RateLimitExceededError,
    UnavailableError,
)
from lanewise.api.generation.body import LATEST, read_bytes
from lanewise.api.http.refusals import shutting_down
from lanewise.api.observing.caller import caller_of
from lanewise.router.endpoints import OWN, Owned, get_model
from lanewise.router.exchange import HOP_BY_HOP, Exchange, ServerGoneError
from lanewise.router.fleet import BusyError, Fleet, Slot
from lanewise.router.naming import SMALL_BYTES, named_in
from lanewise.router.process import Child, LoadError

# Of the router's own server, or answered by it.
DROPPED = frozenset({b"content-length", b"x-request-id", b"origin"})
OF_THE_SERVER = frozenset({b"x-request-id", b"request-id", b"date", b"server"})
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
        self._fleet, self._max_body_bytes, self._page = fleet, max_body_bytes, own_page
        self._errors = error_forms()
        self.answering = 0  # requests
        self.is_refusing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        own = OWN.get((scope["method"], path))
        if own is None and scope["method"] == "GET" and path.startswith(MODEL):
            own = get_model
        if own is not None or path in PATHS:
            scope["route"] = Known(path if path in PATHS else MODEL)
        request = Request(scope, receive)
        if scope["method"] == "GET" and path in page.FILES:
            scope["route"] = Known(path)
            response = await self._page.answer(request)
            await response(scope, receive, send)
            return
        try:
            if own is not None:
                response = await own(self.owned, request)
                await response(scope, receive, send)
                return
            if self.is_refusing:
                raise shutting_down()
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
        # A client that goes takes its request with it, whether it waits or is answered.
        work = asyncio.create_task(self._answer(slot, request, body, send))
        leaving = asyncio.create_task(_gone(request.receive))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            if not work.cancelled():
                work.result()
        finally:
            leaving.cancel()
            if not work.done():
                work.cancel()
                await asyncio.wait({work})

    async def _slot_of(self, request: Request, body: bytes) -> Slot:
        name = request.query_params.get("model")
        if name is None and body:
            is_ollama = request.url.path.startswith("/api/")
            keys = ("model", "name") if is_ollama else ("model",)
            if len(body) <= SMALL_BYTES:
                name = named_in(body, keys)
            else:
                name = await asyncio.to_thread(named_in, body, keys)
        slot = self.find(name)
        if slot is None:
            known = list(self._fleet.catalogue.by_name)
            if name:
                raise ModelNotFoundError.of(name, known)
            shown = ", ".join(map(repr, known[:20]))
            raise ModelNotFoundError(
                f"model is required: there are several and no default; accepted: {shown}",
                param="model",
            )
        return slot

    def find(self, name: str | None) -> Slot | None:
        """The model that a request calls so, as servers of one model read names."""
        if not name:
            return self._fleet.find(None)
        tried = (name, name.removesuffix(LATEST), name + LATEST)
        return next((slot for one in tried if (slot := self._fleet.find(one))), None)

    async def _answer(self, slot: Slot, request: Request, body: bytes, send: Send) -> None:
        scope = request.scope
        async with self._child(slot) as child:
            target = scope["raw_path"]
            if scope["query_string"]:
                target += b"?" + scope["query_string"]
            fields = [one for one in scope["headers"] if one[0] not in DROPPED]
            fields.append((b"x-request-id", scope["request_id"]))
            if body or scope["method"] in ("POST", "PUT", "PATCH"):
                fields.append((b"content-length", b"%d" % len(body)))
            try:
                exchange = await child.line.ask(scope["method"], target, fields, body)
            except ServerGoneError:
                raise await _ended(slot, child) from None
            caller_of(scope).hold.body_is_read()
            try:
                await self._stream(slot, child, exchange, request.url.path, send)
                slot.failures = 0
            finally:
                child.line.give_back(exchange)

    async def _stream(
        self, slot: Slot, child: Child, exchange: Exchange, path: str, send: Send
    ) -> None:
        kind = dict(exchange.headers).get(b"content-type", b"")
        drop = HOP_BY_HOP | OF_THE_SERVER
        headers = [one for one in exchange.headers if one[0] not in drop]
        start = {"type": "http.response.start", "status": exchange.status, "headers": headers}
        await send(cast(Message, start))
        try:
            async for some in exchange.pieces():
                await send({"type": "http.response.body", "body": some, "more_body": True})
        except ServerGoneError:
            # A whole answer that breaks off is not ended, so that no client thinks it is whole.
            last = self._last_words(await _ended(slot, child), path, kind)
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
    async def _child(self, slot: Slot) -> AsyncIterator[Child]:
        using = self._fleet.using(slot)
        try:
            child = await using.__aenter__()
        except BusyError as error:
            headers = {"retry-after": str(max(1, round(error.after_s)))}
            if error.is_full:
                raise RateLimitExceededError(str(error), headers=headers) from None
            raise UnavailableError(str(error), headers=headers) from None
        except LoadError as error:
            message = f"{slot.entry.name} could not be loaded: {error}"
            raise UnavailableError(message, code="model_not_loaded") from None
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


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
