"""HTTP of one connection, bounded: what it may cost before its request is admitted.

uvicorn's protocol parses, queues pipelined requests and knows when an answer is complete; this adds
what it has no limits for. Bytes of a head are counted as they arrive, whether it ever ends or not;
heads, bodies and answers that do not move on are given up; bodies share one budget; and more
connections than there may be are told so. A client that is turned away gets an OpenAI error object
and may finish sending, unread, for as long as it would have had: closed at once, the connection
would be reset and the answer lost.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, cast

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from lanewise.api.errors import ApiError
from lanewise.api.http import refusals
from lanewise.api.http.front import Front
from lanewise.api.http.limits import Hold
from lanewise.api.http.output import Output, answer_until_close, pass_on
from lanewise.api.http.refusals import MAX_FIELDS, MAX_TARGET, PROBED, SINGLE

MAX_PIPELINED = 16  # requests behind the one that is answered
# Each chunk of a body costs a microsecond: beyond this many they must have some size on average.
MAX_SMALL_CHUNKS, MIN_CHUNK_BYTES = 4096, 16
# How long connections beyond the limit may take to ask how the server is.
PROBE_HEAD_S = 1.0
LINGER_S = 2.0
# Until a client that sends no more is asked again whether it listens: first, and from then on.
LISTENER_S, LISTENERS_S = 0.05, 1.0
MIN_SENT = 16 << 10  # bytes of an answer that a client takes in send_timeout_s


class Phase(Enum):
    """What a connection waits to receive."""

    IDLE = 0  # the first byte of a request
    HEAD = 1
    BODY = 2
    NOTHING = 3  # whatever comes is dropped


IDLE, HEAD, BODY, NOTHING = Phase  # looking them up in the class takes longer


class Connection(HttpToolsProtocol):
    """One connection."""

    def __init__(self, front: Front, **options: Any) -> None:
        super().__init__(**options)
        self._front = front
        self.url = b""
        self._limits = front.settings
        self._refusal: ApiError | None = None  # why a callback of the parser stopped it
        self._phase = IDLE
        self._deadline = 0.0  # when the phase must be over; 0 = any time
        self._lingers = False
        self._is_probe = False
        self._ignores_upgrade = False
        # Of the message that is received: bytes of its head from reads that hold nothing else,
        # bytes of names and values, fields, bytes and chunks of its body, bytes that carried it.
        self._head_bytes = self._field_bytes = self._fields = 0
        self._body_bytes = self._chunks = self._wire_bytes = 0
        self._heads = self._messages = 0  # that have been complete
        self._single: set[bytes] = set()  # fields that have come
        self._answering: RequestResponseCycle | None = None
        self._sent = 0
        self._stalled_at = 0.0

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Look after the connection, or turn it away when there are too many."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._output = Output(self.transport, self._close_after_answer)
        n_open, places = self._front.add(self, self.loop), self._front.places
        most = places.connections
        if n_open > most and self._front.make_room(self, self.loop.time()):
            n_open -= 1
        timeout = self._limits.head_timeout_s
        if n_open > sum(places):
            self._answer(self._no_place())
            self._phase = NOTHING
            self.transport.close()
            return
        if n_open > most:
            self._is_probe = True
            self.app = partial(self._answer_probe, self.app)
            timeout = min(timeout, PROBE_HEAD_S) or PROBE_HEAD_S
        self._deadline = timeout and self.loop.time() + timeout

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is done for this client, pipelined requests included."""
        super().connection_lost(exc)
        self._front.remove(self)
        self._disconnect(self._answering)
        for cycle, _ in self.pipeline:
            _hold_of(cycle).release()
        self.pipeline.clear()

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that has said all may still listen: it is answered, if it asked something.

        A client that is gone looks the same, but does not take what is sent.
        """
        cycle = self.cycle
        if self._phase is not IDLE or cycle is None or cycle.response_complete:
            return False
        cycle.keep_alive = False  # the newest one's: those before it are answered first
        # Most are answered before, and never get to see what is to be ignored.
        self.loop.call_later(LISTENERS_S, self._ask_whether_there, LISTENER_S)
        return True

    def _ask_whether_there(self, again_s: float) -> None:
        """Send what clients ignore; the system tells at the next time whether they took it."""
        cycle = self._answering
        if self.transport.is_closing() or cycle is None or cycle.response_started:
            return
        if cycle.scope["http_version"] != "1.0":
            self._output.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.loop.call_later(again_s, self._ask_whether_there, LISTENERS_S)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and look what it makes of the message."""
        if self._phase is NOTHING:
            return
        self._unset_keepalive_if_required()
        if self._phase is IDLE:
            self._begin_head()
        heads, messages = self._heads, self._messages
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or refusals.not_http())
            return
        if heads != self._heads or messages != self._messages:
            # The read held the end of another head, if only of this one, or of a body.
            self._head_bytes = self._wire_bytes = 0
        elif self._phase is HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.max_head_bytes:
                self._refuse(refusals.head_too_large(self._limits.max_head_bytes))
        elif self._phase is BODY:
            self._wire_bytes += len(data)
            overhead = self._wire_bytes - self._body_bytes
            if overhead > self._limits.max_head_bytes + self._body_bytes:
                self._refuse(refusals.bad_chunks("extensions and trailers are too long"))

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The parser leaves what follows to the other protocol, but there is none: the request
            # is answered as if it had not asked, and its body must not be taken for a request.
            framing = [
                b"%b: %b\r\n" % field
                for field in self.headers
                if field[0] in (b"content-length", b"transfer-encoding")
            ]
            self.parser = httptools.HttpRequestParser(self)
            self._ignores_upgrade = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")
            self._ignores_upgrade = False
            self._feed(data[upgrade.args[0] :])

    def shutdown(self) -> None:
        """End a connection without work: a request that is not complete is not waited for."""
        if self._phase is BODY and not self.cycle.response_started:
            self._refuse_body(refusals.shutting_down)
        super().shutdown()

    # What the parser calls. An exception ends its work; ``_refusal`` says why.

    def on_message_begin(self) -> None:
        """A head begins."""
        if self._ignores_upgrade:
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(refusals.too_many_ahead())
        if self._phase is IDLE:
            self._begin_head()
        self._field_bytes = self._fields = self._body_bytes = self._chunks = 0
        self._single.clear()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        if self._ignores_upgrade:
            return
        super().on_url(url)
        if len(self.url) > MAX_TARGET:
            self._stop(refusals.target_too_long())

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; trailers are counted and dropped, for they are no part of it."""
        if self._ignores_upgrade:
            return
        self._field_bytes += len(name) + len(value)
        self._fields += 1
        if self._fields > MAX_FIELDS or self._field_bytes > self._limits.max_head_bytes:
            self._stop(refusals.head_too_large(self._limits.max_head_bytes))
        if self._phase is not HEAD:
            return
        # As the base class does; calling it would take as long again for every field.
        name = name.lower()
        if name in self._single:
            self._stop(refusals.twice(name))
        if name in SINGLE:
            self._single.add(name)
        self.headers.append((name, value))
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            self._stop(refusals.unknown_coding(value))

    def on_headers_complete(self) -> None:
        """A request can be answered from now on."""
        if self._ignores_upgrade:
            return
        if b"host" not in self._single and self.parser.get_http_version() == "1.1":
            self._stop(refusals.no_host())
        self._heads += 1
        self._phase = BODY
        timeout = self._limits.body_timeout_s
        self._deadline = timeout and self.loop.time() + timeout
        hold = Hold(self._front.memory)
        hold.n_unsent = self.transport.get_write_buffer_size
        self.scope["hold"] = hold  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        self.cycle.transport = self._output  # type: ignore[assignment]
        self.scope["more_time"] = self._more_time  # type: ignore[typeddict-unknown-key]
        self.scope["pass_on"] = partial(pass_on, self.cycle)  # type: ignore[typeddict-unknown-key]
        if self._is_probe:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._body_bytes += len(body)
        self._chunks += 1
        few = self._body_bytes < MIN_CHUNK_BYTES * self._chunks
        if few and self._chunks > MAX_SMALL_CHUNKS:
            self._stop(refusals.bad_chunks("they are too small"))
        if self.cycle.response_complete:
            return
        hold = _hold_of(self.cycle)
        was_refused = hold.refusal is not None
        if hold.take(len(body)):
            super().on_body(body)
        elif not was_refused:
            self.cycle.body = bytearray()
            self.cycle.message_event.set()
            self._front.refusals.count("too_much_memory", "request_memory is in use")

    def on_message_complete(self) -> None:
        """A request has been received."""
        if self.parser.should_upgrade():
            return  # it is complete when the rest of it is parsed as if it had not asked
        self._phase = IDLE
        self._messages += 1
        self._deadline = 0.0
        super().on_message_complete()

    # What answers call.

    def on_response_complete(self) -> None:
        """Go on with the next request, if there may be one."""
        if self._lingers:
            self.server_state.total_requests += 1
            return
        super().on_response_complete()

    def _more_time(self) -> None:
        """A long body moves on: it has as long again from now."""
        if self._phase is BODY and self._deadline:
            self._deadline = self.loop.time() + self._limits.body_timeout_s

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        if cycle.scope["http_version"] == "1.0":
            app = partial(answer_until_close, app, cycle)
        super()._start_asgi_task(cycle, app)

    def _close_after_answer(self) -> None:
        if self._phase in (IDLE, HEAD):
            self.transport.close()
            return
        left = self._deadline - self.loop.time() if self._phase is BODY else 0.0
        self._linger(LINGER_S if self._is_probe else max(left, LINGER_S))

    async def _answer_probe(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in PROBED:
            await app(scope, receive, send)
            return
        error = self._no_place()
        await self._front.errors.response(error, scope["path"])(scope, receive, send)
        scope["hold"].release()

    # Turning away.

    def check(self, now: float) -> None:
        """Give up what has taken too long."""
        if 0 < self._deadline <= now:
            self._be_late(now)
        timeout = self._limits.send_timeout_s
        waiting = self.transport.get_write_buffer_size()
        sent = self._output.written - waiting
        if not waiting or sent >= self._sent + MIN_SENT or not self._stalled_at:
            self._sent, self._stalled_at = sent, now if waiting else 0.0
        elif timeout and now >= self._stalled_at + timeout:
            self._front.refusals.count("send_timeout", f"{waiting} bytes of an answer were unread")
            self.transport.abort()

    @property
    def n_requests(self) -> int:
        """Heads of requests that have been complete."""
        return self._heads

    def gives_way(self, now: float) -> bool:
        """Close for the sake of another, unless there is a request that is complete or may be soon.

        So slow clients hold each other up, and not those who come with a request. A body may take
        as long as a head before it counts as slow.
        """
        if self._is_probe:  # few, and soon over
            return False
        is_answered = self.cycle is None or self.cycle.response_complete
        limits = self._limits
        if self._phase is BODY:
            soon = limits.body_timeout_s - limits.head_timeout_s
            if is_answered or self.cycle.response_started or not 0 < self._deadline < now + soon:
                return False
            self._disconnect(self.cycle)
            self._answer(self._no_place())
        elif self._phase is HEAD and is_answered:
            self._answer(self._no_place())
        elif self._phase is not IDLE or not is_answered:
            return False
        self._phase = NOTHING
        self._front.remove(self)
        self.transport.close()
        return True

    def _be_late(self, now: float) -> None:
        if self._phase is NOTHING:
            self.transport.close()
        elif self.flow.read_paused:  # by us, until the requests before it are answered
            self._deadline = now + self._limits.body_timeout_s
        elif self._phase is IDLE:  # nothing ever came
            self._front.refusals.count("head_timeout", "nothing was sent")
            self.transport.close()
        elif self._phase is HEAD:
            self._refuse(refusals.too_slow("head", self._limits.head_timeout_s), "head_timeout")
        else:
            self._end_late_body()

    def _end_late_body(self) -> None:
        timeout = self._limits.body_timeout_s
        self._front.refusals.count("body_timeout", f"a body was not complete in {timeout:g} s")
        cycle = self.cycle
        if cycle.response_complete:
            self.transport.close()
            return
        if cycle.response_started:
            cycle.keep_alive = False
            self._deadline, self._phase = 0.0, NOTHING
            return
        self._refuse_body(partial(refusals.too_slow, "body", timeout))

    def _refuse_body(self, refusal: Callable[[], ApiError]) -> None:
        """Have the reader of the body answer, and close; without a reader the connection ends."""
        cycle = self.cycle
        cycle.keep_alive = False
        cycle.body = bytearray()
        _hold_of(cycle).refuse(refusal)
        cycle.message_event.set()
        self._phase = NOTHING
        # A request that is not even begun has to wait for those before it.
        self._deadline = self.loop.time() + LINGER_S if cycle is self._answering else 0.0

    def _refuse(self, error: ApiError, reason: str | None = None) -> None:
        """Answer with an error and close; requests before it are answered first."""
        self._front.refusals.count(reason or error.code or "invalid_request", error.message)
        before, self._phase = self._phase, NOTHING
        cycle = self.cycle
        is_busy = cycle is not None and not cycle.response_complete
        if is_busy and (before is not BODY or cycle.response_started or self.pipeline):
            cycle.keep_alive = False
            self._deadline = 0.0
            return
        if is_busy:
            self._disconnect(cycle)
        self._answer(error)
        self._linger(LINGER_S)

    def _linger(self, seconds: float) -> None:
        """Send nothing more and drop what comes, until the client closes or time is over."""
        self._lingers = True
        self._phase = NOTHING
        self._deadline = self.loop.time() + seconds
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        if not self.transport.is_closing():
            self.transport.write_eof()

    def _answer(self, error: ApiError) -> None:
        path = self.url.partition(b"?")[0].decode("latin-1")
        response = self._front.errors.response(error, path)
        fields = [*self.server_state.default_headers, *response.raw_headers]
        head = b"".join(b"%b: %b\r\n" % field for field in fields)
        end = b"connection: close\r\n\r\n"
        self._output.write(STATUS_LINE[response.status_code] + head + end + bytes(response.body))

    def _begin_head(self) -> None:
        self._phase = HEAD
        self._head_bytes = 0
        timeout = self._limits.head_timeout_s
        if not self._deadline:
            self._deadline = timeout and self.loop.time() + timeout

    def _stop(self, refusal: ApiError) -> None:
        self._refusal = refusal
        raise refusal

    def _disconnect(self, cycle: RequestResponseCycle | None) -> None:
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _no_place(self) -> ApiError:
        error = refusals.no_place(self._front.places.connections)
        self._front.refusals.count("too_many_connections", error.message)
        return error


def _hold_of(cycle: RequestResponseCycle) -> Hold:
    hold: Hold = cast(dict[str, Any], cycle.scope)["hold"]
    return hold
