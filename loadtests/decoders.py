"""Streams that write all the while, beside which something else is measured."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType

from loadtests.http_stream import Stream, StreamError, Target, post_stream
from loadtests.scenario import Prompts, Scenario

SETTLE_S = 2.0  # after their first tokens, not counted
PROMPT_TOKENS = 32


class Decoders:
    """So many streams, which have begun inside the block and end with it.

    Where one comes to its end before, another begins.
    """

    def __init__(
        self, target: Target, scenario: Scenario, count: int, prompts: Prompts | None = None
    ) -> None:
        self.streams: list[Stream] = []
        self._count = count
        self._target, self._scenario = target, scenario
        self._prompts = prompts or Prompts(scenario.seed)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Decoders":
        self._tasks = [asyncio.create_task(self._decode()) for _ in range(self._count)]
        try:
            while sum(bool(stream.chunk_times) for stream in self.streams) < self._count:
                self.check()
                await asyncio.sleep(0.1)
            await asyncio.sleep(SETTLE_S)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    def check(self) -> None:
        """StreamError if one has failed."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _decode(self) -> None:
        while True:
            stream = Stream()
            self.streams.append(stream)
            body = self._scenario.body(self._prompts.next(PROMPT_TOKENS))
            await post_stream(self._target, body, self._scenario.timeout_s, stream)

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, StreamError):
                await task


def gaps(streams: Iterable[Stream], begin: float, end: float) -> list[float]:
    """Seconds between tokens that came between two moments."""
    return [gap for stream in streams for when, gap in stream.gaps_s if begin < when <= end]
