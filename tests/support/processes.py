"""Processes as the system tells of them, and programs that tests need."""

import contextlib
import shutil
from pathlib import Path

import topics


def is_gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    return True


def children(pid: int) -> list[int]:
    """The processes that any thread of a process has started; none of a process that has ended."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # threads and processes end while they are listed
                found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """The processes below a process."""
    return [one for child in children(pid) for one in (child, *descendants(child))]


def command_line(pid: int) -> list[str]:
    """The program and its arguments; empty for a process that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    return []


def prometheus_tool(name: str) -> str:
    """The path of a program of the Prometheus package; without it the test is skipped."""
    path = shutil.which(name)
    if path is None:
        topics.skip("prometheus", f"{name} is not installed")
    return path
