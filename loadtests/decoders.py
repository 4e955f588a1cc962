"""Streams that write all the while, beside which something else is measured."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import TypeVar

from loadtests.http_stream import Stream, StreamError, Target, post_stream
from loadtests.report import Times
from loadtests.scenario import Prompts, Scenario

SETTLE_S = 2.0  # after their first tokens, not counted
PROMPT_TOKENS = 32
T = TypeVar("T")


class Decoders:
    """So many streams, which have begun inside the block and end with it.

    Where one comes to its end before, another begins: after ``pause_s`` on average.
    """

    def __init__(
        self,
        target: Target,
        scenario: Scenario,
        count: int,
        prompts: Prompts | None = None,
        pause_s: float = 0.0,
    ) -> None:
        self.streams: list[Stream] = []
        self._pause_s, self._random = pause_s, Random(scenario.seed)
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
            await asyncio.sleep(self._pause_s * self._random.uniform(0.5, 1.5))

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, StreamError):
                await task


def gaps(streams: Iterable[Stream], begin: float, end: float) -> list[float]:
    """Seconds between tokens that came between two moments."""
    return [gap for stream in streams for when, gap in stream.gaps_s if begin < when <= end]


def idle_share(streams: Iterable[Stream], begin: float, end: float) -> float:
    """The share of the time between two moments in which no stream waited for anything."""
    spans = sorted((one.started, one.ended or end) for one in streams if one.started)
    idle, covered = 0.0, begin
    for started, ended in spans:
        idle += max(0.0, min(started, end) - covered)
        covered = max(covered, min(ended, end))
    return (idle + max(0.0, end - covered)) / (end - begin)


@dataclass(frozen=True, slots=True)
class Waits:
    """Times between tokens, in milliseconds: of decoders alone, and beside other work."""

    calm: Times
    beside: Times

    @property
    def p99_ratio(self) -> float:
        """The 99th percentile beside other work over the median alone."""
        return (self.beside.p99 or 0) / (self.calm.p50 or 1)


async def run_beside(
    decoders: Decoders, calm_s: float, work: Callable[[], Awaitable[T]]
) -> tuple[T, Waits]:
    """Run some work between two calm times, as what decoders attend to grows meanwhile."""
    calm = time.perf_counter()
    await asyncio.sleep(calm_s)
    busy = time.perf_counter()
    done = await work()
    busy_end = time.perf_counter()
    await asyncio.sleep(SETTLE_S)
    calm_again = time.perf_counter()
    await asyncio.sleep(calm_s)
    end = time.perf_counter()
    decoders.check()
    streams = decoders.streams
    alone = gaps(streams, calm, busy) + gaps(streams, calm_again, end)
    return done, Waits(Times.of(alone), Times.of(gaps(streams, busy, busy_end)))
