"""HTTP to the server of a model: connections over its socket, which are kept for the next request.

httptools parses the answers, as it parses what clients send; the decision
"several-models-by-a-thin-router" says why it is no client library.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

import httptools

Field = tuple[bytes, bytes]

# Of a connection, not of a message (RFC 9110, 7.6.1); what the router's own server has answered.
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect".split()
)
MAX_UNREAD = 256 << 10  # bytes of an answer that a slow client lets pile up here
MAX_KEPT = 64  # connections


class ServerGoneError(Exception):
    """The model's server went away before its answer was complete."""


class Exchange(asyncio.Protocol):
    """A connection to the server, with one request at a time."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[Field] = []
        self.is_complete = False
        self.has_answered = False  # any byte of the answer
        # Takes a piece at once or says that it cannot; asked while all before has been taken.
        self.sink: Callable[[bytes], bool] | None = None
        self._is_head = self._can_stay = False
        self._pieces: deque[bytes] = deque()
        self._unread = 0
        self._is_paused = self._is_lost = False
        self._waiter: asyncio.Future[None] | None = None  # of the one that waits for news

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Some of the answer."""
        self.has_answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self._is_lost = True
        self._tell()

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the answer's head."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The answer's head, or one that says that another comes."""
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()
            return
        self.status = status
        self._can_stay = self._parser.should_keep_alive() and not self._is_head
        if self._is_head:
            self.is_complete = True
        self._tell()

    def on_body(self, body: bytes) -> None:
        """Some bytes of it."""
        if self.sink is not None and self._is_awaited and self.sink(body):
            return
        self._pieces.append(body)
        self._unread += len(body)
        if self._unread > MAX_UNREAD and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._tell()

    def on_message_complete(self) -> None:
        """The answer ends, unless it was one of those heads."""
        if self.status:
            self.is_complete = True
            self._tell()

    # What requests call.

    @property
    def is_free(self) -> bool:
        """Whether another request may be sent."""
        is_open = not self._is_lost and not self._transport.is_closing()
        return self.is_complete and self._can_stay and is_open and not self._pieces

    @property
    def is_over(self) -> bool:
        """Whether all of the answer has been taken."""
        return self.is_complete and not self._pieces

    async def ask(self, method: str, target: bytes, fields: Iterable[Field], body: bytes) -> None:
        """Send a request, and return when the head of its answer is here."""
        self.status, self.headers, self.is_complete, self.sink = 0, [], False, None
        self.has_answered, self._is_head = False, method == "HEAD"
        self._parser = httptools.HttpResponseParser(self)
        lines = [b"%b: %b\r\n" % field for field in fields if field[0] not in HOP_BY_HOP]
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (method.encode(), target, b"".join(lines))
        self._transport.writelines([head, body] if body else [head])
        while not self.status:
            await self._wait()

    async def more(self) -> bytes:
        """The bytes of the answer that have come; none at its end."""
        while not self._pieces:
            if self.is_complete:
                return b""
            await self._wait()
        some = self._pieces.popleft() if len(self._pieces) == 1 else self._all()
        self._unread -= len(some)
        if self._is_paused and self._unread <= MAX_UNREAD // 2 and not self._is_lost:
            self._is_paused = False
            self._transport.resume_reading()
        return some

    def close(self) -> None:
        """Let the server stop its work for the request."""
        self._transport.abort()

    @property
    def _is_awaited(self) -> bool:
        """Whether the request waits for a piece, and has no other in hand."""
        return self._waiter is not None and not self._waiter.done() and not self._pieces

    def _all(self) -> bytes:
        whole = b"".join(self._pieces)
        self._pieces.clear()
        return whole

    def _tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        """Return when there is news; a future is cheaper than an event, and one waits at most."""
        if self._is_lost:
            raise ServerGoneError("its connection was closed")
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter


class Line:
    """The way to one server: its socket, and the connections that are kept."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._kept: list[Exchange] = []

    async def ask(
        self, method: str, target: bytes, fields: list[Field], body: bytes = b""
    ) -> Exchange:
        """An answer whose head is here; ServerGoneError if there is none.

        A connection that was kept may be closed by now: then a new one is tried.
        """
        while self._kept:
            exchange = self._kept.pop()
            if not exchange.is_free:
                continue
            try:
                return await self._asked(exchange, method, target, fields, body)
            except ServerGoneError:
                if exchange.has_answered:
                    raise
        try:
            loop = asyncio.get_running_loop()
            _, exchange = await loop.create_unix_connection(Exchange, self._path)
        except OSError as error:
            raise ServerGoneError(error.strerror or str(error)) from None
        return await self._asked(exchange, method, target, fields, body)

    async def _asked(
        self, exchange: Exchange, method: str, target: bytes, fields: list[Field], body: bytes
    ) -> Exchange:
        try:
            await exchange.ask(method, target, fields, body)
        except BaseException:
            exchange.close()
            raise
        return exchange

    def give_back(self, exchange: Exchange) -> None:
        """Keep the connection for another request, or end what it does."""
        if exchange.is_free and len(self._kept) < MAX_KEPT:
            self._kept.append(exchange)
        else:
            exchange.close()

    async def read(self, target: bytes) -> tuple[int, bytes]:
        """Status and body of what is small."""
        exchange = await self.ask("GET", target, [(b"host", b"localhost")])
        try:
            whole = []
            while some := await exchange.more():
                whole.append(some)
            return exchange.status, b"".join(whole)
        finally:
            self.give_back(exchange)

    def close(self) -> None:
        """Close the connections that are kept."""
        while self._kept:
            self._kept.pop().close()
