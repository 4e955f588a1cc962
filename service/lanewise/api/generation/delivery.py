"""How an answer leaves: in one piece, or as a stream while it is made."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lanewise.api.errors import (
    ApiError,
    BadRequestError,
    InternalError,
    ModelNotFoundError,
    RateLimitExceededError,
    RequestTimeoutError,
    UnavailableError,
)
from lanewise.api.generation.answering import Answering
from lanewise.api.generation.ask import Ask
from lanewise.api.generation.call import Call
from lanewise.api.generation.dialect import Dialect, Wire
from lanewise.api.generation.events import Choice, Progress
from lanewise.api.generation.leaving import beside
from lanewise.api.generation.writing import one_line
from lanewise.api.observing.record import Record
from lanewise.engine.base.adapters import AdapterGoneError
from lanewise.engine.base.request import GenerationRequest
from lanewise.engine.base.stream import (
    EngineError,
    EngineStoppedError,
    NoTokenError,
    QueueFullError,
    QueueTimeoutError,
    RequestStream,
    TimeLimitError,
    TokenOutput,
)
from lanewise.engine.drawing.constraint import ConstraintError

# Proxies close connections on which nothing comes for 60 s, some after 30.
KEEP_ALIVE_S = 5.0
# How often a client is told how much of its prompt is read, if that is more than before.
PROGRESS_S = 0.25


@dataclass(frozen=True, slots=True)
class Order:
    """An answer that is to be made: what the engine draws, what becomes of it, who writes it."""

    call: Call[Ask]
    requests: Sequence[GenerationRequest]
    answering: Answering
    dialect: Dialect[Any]
    wire: Wire
    model: str  # that answers

    @property
    def end_size(self) -> int:
        """How much work the first and the last of an answer are, beside its pieces."""
        return self.call.size if self.dialect.repeats else 0


async def respond(order: Order) -> Response:
    """Run the sequences and answer as the request asked."""
    call, answering, workers = order.call, order.answering, order.call.state.workers
    ask, hold = call.ask, call.hold
    record = Record(order.dialect.name, order.model, ask, answering.usage)
    call.caller.record = record
    if ask.delivery.stream:
        return StreamedResponse(order, record)
    in_order = order.dialect.in_order
    choices = [
        Choice(i, ask.keeps_tokens, keeps_pieces=in_order) for i in range(len(order.requests))
    ]

    def take(outputs: Sequence[TokenOutput]) -> None:
        for piece in answering.pieces(outputs):
            record.note(piece)
            choices[piece.choice].add(piece)

    async with generating(call, order.requests, call.receive) as stream:
        answering.usage.times.moments = stream.moments
        async for outputs in stream:
            size = answering.measure(outputs)
            hold.keep(answering.held_bytes(outputs))
            await workers.write(size, partial(take, outputs))
            answering.end_streams(stream)
        if stream.cancelled:
            return Response(status_code=499)  # the client is gone

    return await workers.answer(
        answering.size + order.end_size,
        lambda: "".join(order.wire.whole(list(given(choices, ask)))),
    )


def given(choices: Sequence[Choice], ask: Ask) -> Iterator[Choice]:
    """Of each prompt's answers the likeliest per token, the likeliest first, if more were drawn."""
    if ask.n_drawn == ask.n:
        yield from choices
        return
    for first in range(0, len(choices), ask.n_drawn):
        yield from sorted(choices[first : first + ask.n_drawn], key=Choice.surprise)[: ask.n]


@asynccontextmanager
async def generating(
    call: Call[Any], requests: Sequence[GenerationRequest], receive: Receive
) -> AsyncIterator[RequestStream]:
    """The engine's outputs; they end at once when the client goes away."""
    engine, trace_id = call.state.generator, call.caller.trace_id
    try:
        async with (
            engine.submit(requests, trace_id=trace_id) as stream,
            beside(_cancel_on_disconnect(receive, stream)),
        ):
            yield stream
    except EngineError as error:
        raise to_api_error(error) from error


async def _cancel_on_disconnect(receive: Receive, stream: RequestStream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.cancel()


class StreamedResponse(Response):
    """What each token adds, as it comes."""

    def __init__(self, order: Order, record: Record) -> None:
        self.media_type = order.dialect.media_type
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._order = order
        self._workers = order.call.state.workers
        self._is_quiet = True  # nothing was sent since a look at this
        self._record = record
        self._told: Progress | None = None  # last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request; errors before the first byte become HTTP errors."""
        try:
            order = self._order
            async with generating(order.call, order.requests, receive) as stream:
                order.answering.usage.times.moments = stream.moments
                start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                await send(start)
                async with beside(self._keep_alive(send)), beside(self._tell_all_progress(send)):
                    tail = await self._send_pieces(stream, send)
                if not stream.cancelled:
                    await send({"type": "http.response.body", "body": tail, "more_body": False})
        except ApiError as error:
            await self._order.dialect.errors.response(error)(scope, receive, send)

    async def _send_pieces(self, stream: RequestStream, send: Send) -> bytes:
        """Send what comes; return what is to be sent last."""
        answering, wire = self._order.answering, self._order.wire

        def written(outputs: Sequence[TokenOutput]) -> bytes:
            made: list[str] = []
            for piece in answering.pieces(outputs):  # numbers that go with it are of its time
                self._record.note(piece)
                made += wire.piece(piece)
            return _encoded(made)

        try:
            write, end_size = self._workers.write, self._order.end_size
            await self._send_some(send, await write(end_size, lambda: _encoded(wire.first())))
            # Whatever has come goes out together: a slow reader gets the same events in fewer
            # pieces.
            async for outputs in stream:
                if self._order.call.ask.delivery.progress:
                    await self._tell_progress(send)  # all of it is read, if that is not told yet
                size = answering.measure(outputs)
                made = await write(size, partial(written, outputs))
                answering.end_streams(stream)
                await self._send_some(send, made)
            return await write(end_size, lambda: _encoded(wire.last()))
        except EngineError as error:
            failure = to_api_error(error)
            return await write(end_size, lambda: _encoded(wire.failed(failure)))

    async def _tell_all_progress(self, send: Send) -> None:
        """Tell how much of the prompt is read until the answer begins, if the request wants it."""
        wanted = self._order.call.ask.delivery.progress
        while wanted and (self._told is None or self._told.read < self._told.total):
            await self._tell_progress(send)
            await asyncio.sleep(PROGRESS_S)

    async def _tell_progress(self, send: Send) -> None:
        order, write = self._order, self._order.dialect.progress
        usage = order.answering.usage
        now = usage.times.progress(usage.prompt_tokens)
        before = self._told
        if write is None or now is None or (before is not None and now.read <= before.read):
            return
        self._told = now
        await self._send_some(send, write(order.wire, now).encode())

    async def _send_some(self, send: Send, made: bytes) -> None:
        if made:
            self._is_quiet = False
            await send({"type": "http.response.body", "body": made, "more_body": True})

    async def _keep_alive(self, send: Send) -> None:
        """Send a client that waits for a long prompt a sign of life now and then."""
        sign = self._order.dialect.keep_alive
        while sign:
            self._is_quiet = True
            await asyncio.sleep(KEEP_ALIVE_S)
            if self._is_quiet:
                await send({"type": "http.response.body", "body": sign, "more_body": True})


def _encoded(made: Iterable[str]) -> bytes:
    return one_line("".join(made)).encode()


def to_api_error(error: EngineError) -> ApiError:
    """An error of the engine as an HTTP answer."""
    if isinstance(error, QueueFullError):
        headers = {"retry-after": str(error.retry_after_s)}
        return RateLimitExceededError(str(error), headers=headers)
    if isinstance(error, QueueTimeoutError):
        headers = {"retry-after": str(error.retry_after_s)}
        return UnavailableError(str(error), code="queue_timeout", headers=headers)
    if isinstance(error, TimeLimitError):
        # OpenAI's clients ask again after any 5xx, unless they are told not to.
        return RequestTimeoutError(str(error), headers={"x-should-retry": "false"})
    if isinstance(error, AdapterGoneError):
        return ModelNotFoundError(str(error), param="model")
    if isinstance(error, EngineStoppedError):
        return UnavailableError(str(error), headers={"retry-after": "1"})
    if isinstance(error, ConstraintError | NoTokenError):
        return BadRequestError(str(error))
    return InternalError(str(error))
