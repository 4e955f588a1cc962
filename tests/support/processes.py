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


def prometheus_tool(name: str) -> str:
    """The path of a program of the Prometheus package; without it the test is skipped."""
    path = shutil.which(name)
    if path is None:
        topics.skip("prometheus", f"{name} is not installed")
    return path
