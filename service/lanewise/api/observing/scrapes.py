"""``/metrics``: the text is made in a thread, one at a time, for all who wait for it."""

import asyncio
from collections.abc import Callable
from time import monotonic

PAUSE_S = 0.1  # between two: making one keeps the interpreter busy for some milliseconds
OPEN_METRICS = "application/openmetrics-text"
TYPES = {
    False: "text/plain; version=0.0.4; charset=utf-8",
    True: f"{OPEN_METRICS}; version=1.0.0; charset=utf-8",
}


class Scrapes:
    """Answers scrapers, who need no key, at a bounded cost; no text is older than its request."""

    def __init__(self, render: Callable[[bool], bytes]) -> None:
        """``render`` makes the text, and in OpenMetrics' format if that is asked for."""
        self._render = render
        # Of each format: begun after the scrapers that wait for it had asked.
        self._next: dict[bool, asyncio.Task[bytes]] = {}
        self._turn = asyncio.Lock()
        self._made_at = 0.0

    async def text(self, accept: str) -> tuple[bytes, str]:
        """All metrics, and their media type, which the client's ``Accept`` decides about."""
        # A scraper that reads OpenMetrics says so and prefers it.
        open_metrics = OPEN_METRICS in accept.lower()
        if open_metrics not in self._next:
            self._next[open_metrics] = asyncio.create_task(self._make(open_metrics))
        # A scraper that leaves does not take it from the others.
        return await asyncio.shield(self._next[open_metrics]), TYPES[open_metrics]

    async def _make(self, open_metrics: bool) -> bytes:
        async with self._turn:
            await asyncio.sleep(max(0.0, self._made_at + PAUSE_S - monotonic()))
            del self._next[open_metrics]
            try:
                return await asyncio.to_thread(self._render, open_metrics)
            finally:
                self._made_at = monotonic()
