"""``/metrics``: the text is made in a thread, one at a time, for all who wait for it."""

import asyncio
from collections.abc import Callable
from time import monotonic

PAUSE_S = 0.1  # between two: making one keeps the interpreter busy for some milliseconds


class Scrapes:
    """Answers scrapers, who need no key, at a bounded cost; nobody gets a text older than asked."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        self._render = render
        self._next: asyncio.Task[bytes] | None = None  # begun after whoever waits for it had asked
        self._turn = asyncio.Lock()
        self._made_at = 0.0

    async def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        if self._next is None:
            self._next = asyncio.create_task(self._make())
        # Who leaves does not take it from the others.
        return await asyncio.shield(self._next)

    async def _make(self) -> bytes:
        async with self._turn:
            await asyncio.sleep(max(0.0, self._made_at + PAUSE_S - monotonic()))
            self._next = None
            try:
                return await asyncio.to_thread(self._render)
            finally:
                self._made_at = monotonic()
