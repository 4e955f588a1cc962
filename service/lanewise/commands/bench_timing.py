"""Clocks of a test: the time that passed, and what of it others had the processors."""

import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Timed(NamedTuple):
    """Time that passed, and in which threads that could run waited for a processor."""

    seconds: float
    waited_s: float

    @classmethod
    def now(cls) -> "Timed":
        """The clocks; what passes until ``until_now`` is measured."""
        return cls(time.perf_counter(), waited_seconds())

    def until_now(self) -> "Timed":
        """What has passed since these clocks."""
        now = Timed.now()
        return Timed(now.seconds - self.seconds, now.waited_s - self.waited_s)


def waited_seconds(tasks: Path = Path("/proc/self/task")) -> float:
    """How long threads of this process that could run have waited for a processor, in all."""
    total = 0
    for task in tasks.glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # a thread that has ended since
            total += int(task.read_text().split()[1])
    return total / 1e9
