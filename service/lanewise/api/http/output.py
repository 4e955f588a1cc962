"""Where the bytes of a connection's answers go."""

import asyncio
from collections.abc import Callable


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
