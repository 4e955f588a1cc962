"""How the bytes of answers leave a connection."""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Output:
    """The transport as answers see it: counts bytes, and leaves closing to the connection."""

    __slots__ = ("_transport", "close", "is_closing", "written")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close
        self.is_closing = transport.is_closing
        self.written = 0

    def write(self, data: bytes) -> None:
        """As the transport's."""
        self.written += len(data)
        self._transport.write(data)


async def answer_until_close(
    app: ASGIApp, cycle: RequestResponseCycle, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer HTTP/1.0, which knows no chunks: what has no length ends with the connection."""
    is_framed = True

    async def send_plain(message: Message) -> None:
        nonlocal is_framed
        if message["type"] == "http.response.start":
            is_framed = any(name.lower() == b"content-length" for name, _ in message["headers"])
            if not is_framed:
                cycle.chunked_encoding = cycle.keep_alive = False
        elif not is_framed:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, send_plain)


def pass_on(cycle: RequestResponseCycle, body: bytes) -> bool:
    """Send a piece of an answer in chunks that has begun, without a task; False where that waits.

    Only while nothing else sends pieces of that answer.
    """
    if cycle.disconnected or cycle.flow.write_paused or not cycle.chunked_encoding:
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
    return True
