"""The sandbox of one server: its zygote and the lanes of its three kinds of jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lanewise.sandbox.lane import REASONS, Counter, Lane, Limits, SandboxError
from lanewise.sandbox.process import (
    NoProcessError,
    ProcessGoneError,
    Worker,
    WorkerLimits,
    Zygote,
)
from lanewise.sandbox.shortage import Shortage

logger = logging.getLogger(__name__)

# A recursion that fits does so in a sixteenth of what the server's threads for it have, because
# there the same work must never overflow.
STACK_BYTES = 4 << 20
SLOW_GRAMMARS, SLOW_TEMPLATES, SLOW_IMAGES = 2, 1, 2


@dataclass(frozen=True, slots=True)
class Counters:
    """What is counted: jobs of each kind by how they ended, and processes."""

    grammars: Mapping[str, Counter]
    templates: Mapping[str, Counter]
    images: Mapping[str, Counter]
    workers: Counter
    restarts: Counter


class Sandbox:
    """Does jobs in processes that are started when the first is to be done."""

    def __init__(
        self, grammars: Limits, templates: Limits, images: Limits, counters: Counters
    ) -> None:
        self._counters = counters
        self.shortage = Shortage()
        self._zygote: Zygote | None = None
        self._starting = asyncio.Lock()
        self._is_closed = False
        self.grammars = Lane(
            *("grammar", "compiled", grammars, self._workers(grammars), counters.grammars),
            slow_places=SLOW_GRAMMARS,
        )
        self.templates = Lane(
            *("template", "rendered", templates, self._workers(templates), counters.templates),
            slow_places=SLOW_TEMPLATES,
        )
        self.images = Lane(
            *("image", "read", images, self._workers(images), counters.images),
            slow_places=SLOW_IMAGES,
        )

    def _workers(self, limits: Limits) -> Callable[[], Awaitable[Worker]]:
        within = WorkerLimits(limits.memory, STACK_BYTES)
        return lambda: self._new_worker(within)

    @property
    def zygote_pid(self) -> int | None:
        """The process that workers are forked from, if there is one."""
        return None if self._zygote is None else self._zygote.pid

    async def prepare(self, set_up: Mapping[str, Any], limits: Limits) -> None:
        """Make what every worker shall have, within limits; it must be known to be harmless."""
        try:
            zygote = await self._running()
            for key, value in set_up.items():
                await zygote.prepare(key, value, limits.cpu_s, limits.memory)
        except NoProcessError as error:
            raise SandboxError("busy", self.shortage.note("processes", error)) from error
        except ProcessGoneError as error:
            raise SandboxError("stopped" if self._is_closed else "busy", str(error)) from error

    async def close(self) -> None:
        """End all jobs and processes."""
        self._is_closed = True
        zygote, self._zygote = self._zygote, None
        await self.grammars.close()
        await self.templates.close()
        await self.images.close()
        if zygote is not None:
            zygote.kill()

    async def try_again(self) -> None:
        """Start a worker and end it; without an error the shortage of processes is over."""
        with contextlib.suppress(ProcessGoneError):
            worker = await self._new_worker(WorkerLimits(self.templates.limits.memory, STACK_BYTES))
            await worker.end()

    async def _new_worker(self, limits: WorkerLimits) -> Worker:
        try:
            worker = await self._fork(limits)
        except NoProcessError as error:
            raise NoProcessError(self.shortage.note("processes", error)) from error
        self.shortage.end()
        self._counters.workers.inc()
        return worker

    async def _fork(self, limits: WorkerLimits) -> Worker:
        zygote = await self._running()
        try:
            return await zygote.fork(limits)
        except ProcessGoneError:
            if not zygote.is_gone:
                raise
            return await (await self._running()).fork(limits)

    async def _running(self) -> Zygote:
        async with self._starting:
            if self._is_closed:
                raise ProcessGoneError("the server is shutting down")
            if self._zygote is not None and self._zygote.is_gone:
                logger.warning("the process that workers are forked from has ended; another starts")
                self._zygote.kill()
                self._zygote = None
                self._counters.restarts.inc()
            if self._zygote is None:
                self._zygote = await Zygote.start()
            return self._zygote


class _Uncounted:
    def inc(self) -> None:
        """Nothing."""


def uncounted() -> Counters:
    """Counters that are dropped, for a pool without metrics."""
    counts = dict.fromkeys((*REASONS, "done"), _Uncounted())
    return Counters(counts, counts, counts, _Uncounted(), _Uncounted())
