"""The processor time of each model, by the keys whose requests it answers.

The kernel gives busy models the same time each, so a key that keeps three busy would have three
times as much as one that keeps one. Here a key has one share, divided among its models, and a model
has what its keys give it: as niceness, relative to the model that has most.
"""

import contextlib
import math
import os
import resource
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path("/")
STEP, MOST = 1.25, 19  # of the kernel: each is that much less time
CAP_SYS_NICE = 23
FLOOR = 20  # RLIMIT_NICE with which a process may go back to niceness 0


def niceness(keys: Mapping[int, Iterable[int]]) -> dict[int, int]:
    """The niceness of each process that answers, by the keys that it answers."""
    busy = {pid: set(some) for pid, some in keys.items()}
    n_models = Counter(key for some in busy.values() for key in some)
    weights = {p: sum(1 / n_models[key] for key in some) for p, some in busy.items() if some}
    most = max(weights.values(), default=1.0)
    return {
        pid: min(MOST, round(math.log(most / weight) / math.log(STEP)))
        for pid, weight in weights.items()
    }


class Shares:
    """Sets the niceness of processes, by what the system lets this one set and take back."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._by_group, self._by_thread = _is_grouped(root), _may_return(root)
        self._set: dict[int, int] = {}  # what each process has that has not 0

    @property
    def is_possible(self) -> bool:
        """Whether shares can be set at all."""
        return self._by_group or self._by_thread

    def set(self, keys: Mapping[int, Iterable[int]]) -> None:
        """Give each process its share; ``keys`` has every process, idle ones without keys.

        What the system refuses for now is tried with the next call.
        """
        if not self.is_possible:
            return
        wanted = niceness(keys)
        for pid in keys:
            nice = wanted.get(pid, 0)
            if nice != self._set.get(pid, 0):
                with contextlib.suppress(OSError):
                    self._renice(pid, nice)
                    self._set[pid] = nice
        self._set = {pid: nice for pid, nice in self._set.items() if pid in keys and nice}

    def _renice(self, pid: int, nice: int) -> None:
        process = self._root / "proc" / str(pid)
        if self._by_group:
            (process / "autogroup").write_text(str(nice))
            return
        for thread in (process / "task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)


def _is_grouped(root: Path) -> bool:
    """Whether the kernel shares time out by session: each server has one of its own."""
    with contextlib.suppress(OSError):
        if (root / "proc/sys/kernel/sched_autogroup_enabled").read_text().strip() != "1":
            return False
        # Not within a control group that has a share itself.
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if (not controllers or "cpu" in controllers.split(",")) and path != "/":
                return False
        return True
    return False


def _may_return(root: Path) -> bool:
    """Whether niceness can be taken back, which takes a capability or a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if soft == resource.RLIM_INFINITY or soft >= FLOOR:
        return True
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> CAP_SYS_NICE & 1)
    return False
