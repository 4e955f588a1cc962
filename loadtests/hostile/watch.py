"""A process that asks a server every few milliseconds whether it lives, and sees its memory."""

import contextlib
import http.client
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from loadtests.report import percentile
from loadtests.server import resident_bytes

POLL_S = 0.015
MEMORY_EVERY = 4  # polls
POLL_TIMEOUT_S = 30.0
STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen: pairs of a time of ``time.perf_counter`` and a value."""

    live: Sequence[tuple[float, float]]  # seconds that /health/live took
    memory: Sequence[tuple[float, int]]  # resident bytes of the server and its processes
    failures: Sequence[tuple[float, str]]

    def live_ms(self, begin: float, end: float) -> list[float]:
        """Ascending milliseconds of the polls that began in a span of time."""
        return sorted(1000 * took for at, took in self.live if begin <= at < end)

    def live_worst_ms(self, begin: float, end: float) -> float:
        """The longest of them, 0 if there was none."""
        return max(self.live_ms(begin, end), default=0.0)

    def live_p99_ms(self, begin: float, end: float) -> float:
        """What 99 of 100 of them did not exceed, 0 if there was none."""
        return percentile(self.live_ms(begin, end), 99) or 0.0

    def memory_peak(self, begin: float, end: float) -> int:
        """The most memory in a span of time, bytes."""
        return max((size for at, size in self.memory if begin <= at < end), default=0)

    def failures_in(self, begin: float, end: float) -> list[str]:
        """What went wrong with polls in a span of time."""
        return [text for at, text in self.failures if begin <= at < end]


class Watcher:
    """The process, from outside."""

    def __init__(self, stop: Event, results: Connection) -> None:
        self._stop = stop
        self._results = results
        self.sight = Sight((), (), ())

    def finish(self) -> Sight:
        """End it and take what it saw."""
        self._stop.set()
        if self._results.poll(STOP_S):
            self.sight = self._results.recv()
        return self.sight


@contextmanager
def watching(port: int, pid: int) -> Iterator[Watcher]:
    """A process that watches a server while this is open."""
    context = get_context("spawn")
    stop = context.Event()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_watch, args=(port, pid, stop, theirs), daemon=True)
    process.start()
    watcher = Watcher(stop, ours)
    try:
        yield watcher
    finally:
        process.kill()
        process.join()


def _watch(port: int, pid: int, stop: Event, results: Connection) -> None:
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)  # its own wait for a CPU is not the server's fault
    live: list[tuple[float, float]] = []
    memory: list[tuple[float, int]] = []
    failures: list[tuple[float, str]] = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=POLL_TIMEOUT_S)
    due = time.perf_counter()
    while True:
        began = time.perf_counter()
        try:
            connection.request("GET", "/health/live")
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                failures.append((began, f"/health/live: {answer.status}"))
        except (OSError, http.client.HTTPException) as error:
            failures.append((began, f"/health/live: {error!r}"))
            connection.close()
            time.sleep(POLL_S)
        # A poll that had to wait for its predecessor would have waited as long.
        ended = time.perf_counter()
        live.append((began, ended - began))
        due += POLL_S
        while due < ended:
            live.append((due, ended - due))
            due += POLL_S
        if len(live) % MEMORY_EVERY == 0:
            memory.append((ended, resident_bytes(pid)))
        if stop.is_set():
            break
        time.sleep(max(0.0, due - time.perf_counter()))
    results.send(Sight(live, memory, failures))
