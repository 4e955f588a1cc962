"""Programs that run under emulation while other tests run, with what these leave of the machine."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from levels import TIMEOUT_S, Level, command_of, missing

Done = subprocess.CompletedProcess[str]
LOWEST_PRIORITY = ("nice", "-n", "19")


@dataclass(frozen=True)
class Run:
    """A program at a level, with its arguments."""

    program: str
    level: Level
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return str(self.level)


class Emulations:
    """Runs programs in the order they are asked for, as many at a time as there are cores.

    Their priority is the lowest: a test that waits for a deadline of its own does not notice them.
    """

    def __init__(self, build: Callable[[str], Path]) -> None:
        self._build = build
        self._building = threading.Lock()
        self._programs: dict[str, Path] = {}
        self._workers = ThreadPoolExecutor(os.cpu_count())
        self._runs: dict[Run, Future[Done]] = {}
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()

    def start(self, runs: Iterable[Run]) -> None:
        """Begin with those whose level can be emulated here."""
        for run in runs:
            if run not in self._runs and missing(run.level) is None:
                self._runs[run] = self._workers.submit(self._finish, run)

    def result(self, run: Run) -> Done:
        """What a program did, once it has ended; skips the test if the level cannot be emulated."""
        if reason := missing(run.level):
            pytest.skip(reason)
        self.start([run])
        return self._runs[run].result(TIMEOUT_S)

    def close(self) -> None:
        """End what still runs."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for process in self._processes:
                process.kill()

    def _program(self, name: str) -> Path:
        with self._building:
            if name not in self._programs:
                self._programs[name] = self._build(name)
            return self._programs[name]

    def _finish(self, run: Run) -> Done:
        command = [*LOWEST_PRIORITY, *command_of(self._program(run.program), run.level)]
        with subprocess.Popen(
            [*command, *run.arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            with self._lock:
                self._processes.add(process)
            stdout, stderr = process.communicate()
            with self._lock:
                self._processes.remove(process)
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
