"""How an answer leaves: in one piece, or as server-sent events while it is made."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lanewise.api.body import release_body
from lanewise.api.generation import to_api_error
from lanewise.api.reply import Reply
from lanewise.api.state import ServerState
from lanewise.engine.engine import Engine
from lanewise.engine.request import GenerationRequest
from lanewise.engine.stream import EngineError, RequestStream, TokenOutput

DONE = b"data: [DONE]\n\n"


async def respond(
    request: Request, state: ServerState, requests: Sequence[GenerationRequest], reply: Reply[Any]
) -> Response:
    """Run the sequences and answer as the request asked."""
    release_body(request)
    if reply.streams:
        return EventStreamResponse(state, requests, reply)
    async with generating(state.engine, requests, request.receive) as stream:
        async for outputs in stream:
            await state.answering(reply.measure(outputs), partial(reply.add, outputs))
            reply.end_texts(stream)
        if stream.cancelled:
            return Response(status_code=499)  # nobody is there to read it
    body = await state.answering(reply.whole_size, reply.whole)
    return Response(body, media_type="application/json")


@asynccontextmanager
async def generating(
    engine: Engine, requests: Sequence[GenerationRequest], receive: Receive
) -> AsyncIterator[RequestStream]:
    """The engine's outputs; they end at once when the client goes away."""
    async with submitted(engine, requests) as stream:
        watcher = asyncio.create_task(_cancel_on_disconnect(receive, stream))
        try:
            yield stream
        finally:
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher


@asynccontextmanager
async def submitted(
    engine: Engine, requests: Sequence[GenerationRequest]
) -> AsyncIterator[RequestStream]:
    """``engine.submit`` with the errors of HTTP."""
    try:
        async with engine.submit(requests) as stream:
            yield stream
    except EngineError as error:
        raise to_api_error(error) from error


async def _cancel_on_disconnect(receive: Receive, stream: RequestStream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.cancel()


class EventStreamResponse(Response):
    """One event for each token, then [DONE]."""

    media_type = "text/event-stream"

    def __init__(
        self, state: ServerState, requests: Sequence[GenerationRequest], reply: Reply[Any]
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._state = state
        self._requests = requests
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request; errors before the first byte become HTTP errors."""
        reply, state = self._reply, self._state

        def events(outputs: Sequence[TokenOutput]) -> bytes:
            return "".join(reply.events(outputs)).encode()

        async with generating(state.engine, self._requests, receive) as stream:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                await _send_events(send, "".join(reply.first_events()).encode())
                # Whatever has come goes out together: a slow reader gets the same events in
                # fewer pieces.
                async for outputs in stream:
                    made = await state.answering(reply.measure(outputs), partial(events, outputs))
                    reply.end_texts(stream)
                    await _send_events(send, made)
                tail = "".join(reply.last_events()).encode() + DONE
            except EngineError as error:
                tail = to_api_error(error).event() + DONE
            if not stream.cancelled:
                await send({"type": "http.response.body", "body": tail, "more_body": False})


async def _send_events(send: Send, events: bytes) -> None:
    if events:
        await send({"type": "http.response.body", "body": events, "more_body": True})
