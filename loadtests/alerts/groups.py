"""Control groups of version 1: faults give a process, or one of its threads, less than it needs."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lanewise import host

PERIOD_US = 100_000
MAX_PERIOD_US = 1_000_000
SHORTEST_QUOTA_US = 1_000
GONE_S = 5.0


class NoGroupsError(Exception):
    """This kernel, or this user, cannot have control groups of version 1."""


def own_group(controller: str) -> Path:
    """The folder of the group that this process is in."""
    for version, folder in host.cgroup_folders(host.ROOT, controller):
        if version == 1:
            return folder
    raise NoGroupsError(f"this kernel has no {controller} control groups of version 1")


@contextmanager
def control_group(controller: str, name: str) -> Iterator[Path]:
    """A group of its own below this process's, removed when all of it have ended."""
    folder = own_group(controller) / f"lanewise-{name}-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        raise NoGroupsError(f"no control group can be made: {error}") from None
    try:
        yield folder
    finally:
        deadline = time.monotonic() + GONE_S
        while folder.exists() and time.monotonic() < deadline:
            with suppress(OSError):  # its processes have not been reaped yet
                folder.rmdir()
            time.sleep(0.05)


def set_quota(group: Path, quota_us: int, period_us: int = PERIOD_US) -> None:
    """Let a group have so much CPU time in each period; -1: all it wants."""
    (group / "cpu.cfs_quota_us").write_text("-1")
    (group / "cpu.cfs_period_us").write_text(str(period_us))
    (group / "cpu.cfs_quota_us").write_text(str(quota_us))


def leave_one(group: Path, pid: int, thread: int) -> None:
    """Move all threads of a process but one to the group above; what they begin is there too."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if int(task.name) != thread:
            with suppress(OSError):  # it has ended
                (group.parent / "tasks").write_text(task.name)


def busiest_thread(pid: int, seconds: float) -> int:
    """The thread of a process, but for its first, that uses most CPU time within some seconds."""
    before = _cpu_times(pid)
    time.sleep(seconds)
    after = _cpu_times(pid)
    after.pop(pid)
    return max(after, key=lambda thread: after[thread] - before.get(thread, 0))


def _cpu_times(pid: int) -> dict[int, int]:
    times = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            times[int(task.name)] = int(fields[11]) + int(fields[12])  # user and system
    return times


def memory_in_use(group: Path) -> int:
    """Bytes of a group, as its server counts them."""
    return host.held_bytes(group, version=1)
