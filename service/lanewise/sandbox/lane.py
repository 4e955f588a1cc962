"""Which job gets a worker when, and for how long.

A job begins in the express lane, where one worker does one job after the other, and most take a
millisecond. What takes longer than its slice of time goes on in the slow lane, at a lower priority:
in its own worker, whose place another takes, or, where all places of the slow lane are taken, from
the beginning when its turn comes. So a job waits for the slices of those before it, which are the
shorter the more there are, and never for whole jobs. In both lanes the first is whose client has
used least time lately, then what is smallest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lanewise.sandbox import wire
from lanewise.sandbox.process import ProcessGoneError, Worker

logger = logging.getLogger(__name__)

MAX_WAITING = 512
MAX_WAITING_SLOW = 16
SLICE_S = 0.1
MIN_SLICE_S = 0.015
SHARED_SLICES_S = 0.5  # of all that wait for the express lane
SLOW_NICE = 10
# Where the model has all CPUs, a slow job gets a tenth of one.
WALL_FACTOR, MIN_WALL_S = 5.0, 10.0
SLOW_WAIT_S = 10.0
USAGE_HALF_LIFE_S = 10.0


class SandboxError(Exception):
    """A job was not done; ``reason`` is one of ``REASONS``."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


# refused: by the job itself. time, memory, depth, size: a limit. crash: none of these. busy: too
# much else is to be done. stopped: the server ends.
REASONS = ("refused", "time", "memory", "depth", "size", "crash", "busy", "stopped")
STOPPED = "the server is shutting down"
SIGNALS = {
    signal.SIGPROF: "time",
    signal.SIGXCPU: "time",
    signal.SIGSEGV: "depth",
    signal.SIGBUS: "depth",
    signal.SIGABRT: "memory",
}


class Counter(Protocol):
    """What counts."""

    def inc(self) -> object:
        """Count one more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one job may take."""

    cpu_s: float
    memory: int  # bytes
    answer: int  # bytes


@dataclass(eq=False, slots=True)
class Job:
    """Something to do, and whose it is."""

    packed: bytes
    set_up: Mapping[str, Any]  # what it needs to find, made where it is not there
    client: int
    done: asyncio.Future[Any]
    arrived: float = field(default_factory=time.monotonic)
    tried_again: bool = False
    pid: int = 0  # of its worker


class Lane:
    """Does jobs of one kind."""

    def __init__(
        self,
        kind: str,
        done_word: str,
        limits: Limits,
        new_worker: Callable[[], Awaitable[Worker]],
        counts: Mapping[str, Counter],
        *,
        slow_places: int,
    ) -> None:
        self._kind, self._done_word = kind, done_word
        self.limits = limits
        self._new_worker = new_worker
        self._counts = counts
        self._slow_places = slow_places
        self._waiting: list[Job] = []
        self._waiting_slow: list[Job] = []
        self._idle: Worker | None = None
        self._express: asyncio.Task[None] | None = None
        self._slow: dict[asyncio.Task[None], Job] = {}
        self._is_closed = False
        self._used: dict[int, tuple[float, float]] = {}  # seconds of each client, and when

    @property
    def n_slow(self) -> int:
        """Jobs that run in the slow lane."""
        return len(self._slow)

    @property
    def n_slow_waiting(self) -> int:
        """Jobs that wait for the slow lane."""
        return len(self._waiting_slow)

    @property
    def slow_pids(self) -> list[int]:
        """Processes of the slow lane."""
        return [job.pid for job in self._slow.values() if job.pid]

    async def run(self, packed: bytes, set_up: Mapping[str, Any], client: int) -> Any:
        """The result of a job, made with ``pack_job``; SandboxError if there is none.

        When the caller is cancelled, work on its job ends.
        """
        if self._is_closed:
            self._counts["stopped"].inc()
            raise SandboxError("stopped", STOPPED)
        if len(self._waiting) >= MAX_WAITING:
            self._counts["busy"].inc()
            raise SandboxError("busy", f"{MAX_WAITING} others wait")
        job = Job(packed, set_up, client, asyncio.get_running_loop().create_future())
        self._wait(job)
        try:
            result = await job.done
        except SandboxError as error:
            self._counts[error.reason].inc()
            raise
        finally:
            job.done.cancel()  # nothing if it is done
            for queue in (self._waiting, self._waiting_slow):
                if job in queue:
                    queue.remove(job)
            del job  # an error refers to this frame, and should not keep its own job alive
        self._counts["done"].inc()
        return result

    async def close(self) -> None:
        """End what runs; no job is begun any more."""
        self._is_closed = True
        for job in (*self._waiting, *self._waiting_slow):
            _fail(job, "stopped", STOPPED)
        tasks = [task for task in (self._express, *self._slow) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._idle is not None:
            await self._idle.end()
            self._idle = None

    def _wait(self, job: Job) -> None:
        self._waiting.append(job)
        if self._express is None or self._express.done():
            self._express = asyncio.create_task(self._run_express())

    async def _run_express(self) -> None:
        while self._waiting:
            n_waiting = len(self._waiting)
            job = self._take_next(self._waiting)
            worker, self._idle = self._idle, None
            shared = max(SHARED_SLICES_S / n_waiting, MIN_SLICE_S)
            with _answered(job):
                worker = worker or await self._new_worker()
                await self._attempt(job, worker, min(SLICE_S, shared))

    async def _attempt(self, job: Job, worker: Worker, slice_s: float) -> None:
        """Try a job for its slice of time; afterwards the worker is idle, slow or gone."""
        began = time.monotonic()
        asking = self._begin_asking(job, worker)
        try:
            await _first_of(asking, job.done, slice_s)
        except asyncio.CancelledError:
            await _abandon(asking, worker)
            raise
        self._charge(job.client, time.monotonic() - began)
        if asking.done():
            if await self._finish(job, worker, asking):
                self._idle = worker
        elif job.done.done():
            await _abandon(asking, worker)
        elif len(self._slow) < self._slow_places:
            worker.slow_down(SLOW_NICE)
            self._begin_slow(job, self._go_on(job, worker, asking))
        else:
            await _abandon(asking, worker)
            self._wait_slowly(job)

    def _wait_slowly(self, job: Job) -> None:
        self._waiting_slow.append(job)
        if len(self._waiting_slow) > MAX_WAITING_SLOW:
            # The job of the client that has used the most time goes.
            loser = max(self._waiting_slow, key=self._rank)
            self._waiting_slow.remove(loser)
            _fail(loser, "busy", "too many others that take long are waiting")
        asyncio.get_running_loop().call_later(SLOW_WAIT_S, self._give_up, job)
        self._fill_slow()  # a place may have come free while the job's worker ended

    def _give_up(self, job: Job) -> None:
        if job in self._waiting_slow:
            self._waiting_slow.remove(job)
            _fail(job, "busy", f"its turn did not come within {SLOW_WAIT_S:g} s")

    def _begin_slow(self, job: Job, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._slow[task] = job
        task.add_done_callback(self._end_slow)

    def _end_slow(self, task: asyncio.Task[None]) -> None:
        job = self._slow.pop(task)
        if task.cancelled():
            _fail(job, "stopped", STOPPED)  # perhaps before the task has run at all
        self._fill_slow()

    def _fill_slow(self) -> None:
        while not self._is_closed and self._waiting_slow and len(self._slow) < self._slow_places:
            job = self._take_next(self._waiting_slow)
            self._begin_slow(job, self._begin_again(job))

    async def _begin_again(self, job: Job) -> None:
        with _answered(job):
            worker = await self._new_worker()
            worker.slow_down(SLOW_NICE)
            await self._go_on(job, worker, self._begin_asking(job, worker))

    async def _go_on(self, job: Job, worker: Worker, asking: asyncio.Task[Any]) -> None:
        """Wait for a job in the slow lane."""
        began = time.monotonic()
        try:
            with _answered(job):
                limit = max(WALL_FACTOR * self.limits.cpu_s, MIN_WALL_S)
                await _first_of(asking, job.done, limit)
                if not asking.done():
                    await _abandon(asking, worker)
                    busy = f"not {self._done_word} within {limit:g} s beside other work"
                    _fail(job, "busy", busy)
                elif await self._finish(job, worker, asking):
                    await worker.end()  # its priority cannot be raised again
        except asyncio.CancelledError:
            await _abandon(asking, worker)
            raise
        finally:
            self._charge(job.client, time.monotonic() - began)

    def _begin_asking(self, job: Job, worker: Worker) -> asyncio.Task[Any]:
        asking = asyncio.create_task(self._ask(job, worker))
        # No task waits for it any more when the lane is closed.
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())
        return asking

    async def _ask(self, job: Job, worker: Worker) -> Any:
        job.pid = worker.pid
        missing = {key: value for key, value in job.set_up.items() if key not in worker.made}
        before = wire.pack({"set_up": missing, "cpu_s": self.limits.cpu_s})
        return await worker.ask(before + job.packed, self.limits.answer)

    async def _finish(self, job: Job, worker: Worker, asking: asyncio.Task[Any]) -> bool:
        """Tell how a job went that is over; whether its worker can do another."""
        error = asking.exception()
        if error is None:
            reply = asking.result()
            self._tell(job, reply)
            worker.made |= job.set_up.keys() if reply.get("made") else set()
            if reply["retire"] or "failed" in reply:
                await worker.end()
                return False
            return True
        number = await worker.end()
        if isinstance(error, OverflowError):
            _fail(job, "size", f"its result has more than {self.limits.answer} bytes")
        elif not isinstance(error, ProcessGoneError):
            raise error
        elif number in SIGNALS:
            self._tell(job, {"failed": SIGNALS[signal.Signals(number)], "signal": number})
        elif not job.tried_again:
            # Somebody else ended it, or the zygote: not the job's fault, once.
            job.tried_again = True
            self._wait(job)
        elif number in (signal.SIGKILL, None):
            _fail(job, "busy", "the process that did it was ended from outside, twice")
        else:
            self._tell(job, {"failed": "crash", "why": f"signal {number}"})
        return False

    def _tell(self, job: Job, reply: Mapping[str, Any]) -> None:
        if job.done.done():
            return
        if "result" in reply:
            result = reply["result"]
            if wire.RAW in reply:
                result[wire.RAW] = reply[wire.RAW]
            job.done.set_result(result)
        elif "refused" in reply:
            _fail(job, "refused", reply["refused"])
        else:
            reason = reply["failed"]
            logger.warning("a %s ended its process: %s", self._kind, _shown(reply))
            _fail(job, reason, self._words(reason))

    def _words(self, reason: str) -> str:
        if reason == "time":
            return f"not {self._done_word} within {self.limits.cpu_s:g} s of processor time"
        if reason == "memory":
            return f"needs more than {self.limits.memory >> 20} MiB"
        if reason == "depth":
            return "is nested too deeply"
        return "what reads it has failed"

    def _take_next(self, queue: list[Job]) -> Job:
        job = min(queue, key=self._rank)
        queue.remove(job)
        return job

    def _rank(self, job: Job) -> tuple[float, int, float]:
        return round(self._usage(job.client), 2), len(job.packed), job.arrived

    def _usage(self, client: int) -> float:
        seconds, when = self._used.get(client, (0.0, 0.0))
        return seconds * math.exp2((when - time.monotonic()) / USAGE_HALF_LIFE_S)

    def _charge(self, client: int, seconds: float) -> None:
        self._used[client] = self._usage(client) + seconds, time.monotonic()


def _shown(reply: Mapping[str, Any]) -> str:
    if "signal" in reply:
        return signal.Signals(reply["signal"]).name
    return str(reply.get("why", reply["failed"]))


def _fail(job: Job, reason: str, message: str) -> None:
    if not job.done.done():
        job.done.set_exception(SandboxError(reason, message))


async def _first_of(one: asyncio.Future[Any], other: asyncio.Future[Any], seconds: float) -> None:
    await asyncio.wait({one, other}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


async def _abandon(asking: asyncio.Task[Any], worker: Worker) -> None:
    """Kill the worker and cancel the task waiting for it."""
    asking.cancel()
    with contextlib.suppress(BaseException):
        await asking
    await worker.end()


@contextlib.contextmanager
def _answered(job: Job) -> Iterator[None]:
    """Whatever happens, somebody hears of it, and the next job is done."""
    try:
        yield
    except ProcessGoneError as error:
        _fail(job, "busy", str(error))
    except asyncio.CancelledError:
        _fail(job, "stopped", STOPPED)
        raise
    except Exception:
        logger.exception("a job has failed")
        _fail(job, "crash", "what reads it has failed")


def pack_job(name: str, payload: Mapping[str, Any], raw: bytes = b"") -> bytes:
    """A job for a worker; ValueError or RecursionError if JSON cannot hold its payload."""
    return wire.pack({"job": name, "payload": payload, wire.RAW: raw})
