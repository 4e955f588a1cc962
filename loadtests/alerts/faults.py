"""What goes wrong: each fault lasts as long as its block and leaves a server that is well again."""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtests.alerts.groups import (
    MAX_PERIOD_US,
    SHORTEST_QUOTA_US,
    busiest_thread,
    leave_one,
    memory_in_use,
    set_quota,
)
from loadtests.alerts.targets import Target, ask, clients, repeating, running_sequences

SMALL = ("--kv-memory", "1MiB")  # a context of 256 tokens
PROMPT = [5] * 225  # with what follows, all eight blocks of that cache
DEAD_S = 5.0  # the first time; later a server begins at once
SEEN_S = 2.0  # in which each start is scraped
ALMOST_ALL = 0.98
FIRST_LONG, TOKENS_FIRST_S = 5, 15.0
BUSY_S = 1.0  # long enough to see which thread computes


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong with a server."""

    what: str
    alerts: tuple[str, ...]  # that it fires
    happens: Callable[[Target], AbstractContextManager[None]]
    options: tuple[str, ...] = ()  # of the server
    controller: str | None = None  # of the control group that the server is started in
    prepare: Callable[[Target], None] | None = None  # before the server starts


@contextmanager
def _overloaded(target: Target) -> Iterator[None]:
    with clients(target, {"prompt": "The sea", "max_tokens": 240}, 8):
        yield


@contextmanager
def _filled(target: Target) -> Iterator[None]:
    with clients(target, {"prompt": PROMPT, "max_tokens": 31, "n": 40}, 2):
        yield


@contextmanager
def _killed(target: Target) -> Iterator[None]:
    kills = itertools.count()

    def kill(is_over: threading.Event) -> None:
        target.kill()
        is_over.wait(0.0 if next(kills) else DEAD_S)
        target.start()
        is_over.wait(SEEN_S)

    with repeating(kill):
        yield


@contextmanager
def _draining(target: Target) -> Iterator[None]:
    long = {"prompt": ["The sea", "The sun"], "max_tokens": 240, "n": 128}
    running = threading.Thread(target=ask, args=(target, long))
    running.start()
    while not running_sequences(target):
        time.sleep(0.05)
    target.server.process.send_signal(signal.SIGTERM)
    try:
        # One that came before the server began to refuse waits for its turn.
        with clients(target, {"prompt": "A", "max_tokens": 1}, answer_s=1.0):
            yield
    finally:
        target.kill()
        running.join()
        target.start()


def _pack(target: Target) -> None:
    target.model = tempfile.mkdtemp(dir=target.folder)
    command = [sys.executable, "-m", "lanewise", "pack", "--output", target.model]
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def _overwritten(target: Target) -> Iterator[None]:
    """A packed model is mapped, not copied: its file must not be written to while it is served."""
    assert target.model is not None
    path = Path(target.model) / "model.safetensors"
    whole = path.read_bytes()
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff" * (len(whole) // 2), len(whole) // 4)
    try:
        with clients(target, {"prompt": "The sea", "max_tokens": 2}):
            yield
    finally:
        target.kill()
        path.write_bytes(whole)
        target.start()


@contextmanager
def _throttled(target: Target) -> Iterator[None]:
    set_quota(target.group, 15_000)
    with clients(target, {"prompt": "The sea", "max_tokens": 60}, 2):
        try:
            yield
        finally:
            set_quota(target.group, -1)


@contextmanager
def _slowed(target: Target) -> Iterator[None]:
    """The engine's thread, which computes, gets a thousandth of a CPU."""
    pid = target.server.process.pid
    prompts = itertools.count(FIRST_LONG)

    def ask_long(is_over: threading.Event) -> None:
        if (token := next(prompts)) == FIRST_LONG:
            is_over.wait(TOKENS_FIRST_S)  # a step of so many tokens takes all that there is
        ask(target, {"prompt": [token] * 200, "max_tokens": 1})

    # Answers of one token: none comes in time that the alerts would count against the late ones.
    with clients(target, {"prompt": "The sea", "max_tokens": 1}, 2):
        leave_one(target.group, pid, busiest_thread(pid, BUSY_S))
    set_quota(target.group, SHORTEST_QUOTA_US, MAX_PERIOD_US)
    with clients(target, {"prompt": "The sea", "max_tokens": 200}, 2), repeating(ask_long):
        try:
            yield
        finally:
            set_quota(target.group, -1)


@contextmanager
def _squeezed(target: Target) -> Iterator[None]:
    limit = target.group / "memory.limit_in_bytes"
    limit.write_text(str(int(memory_in_use(target.group) / ALMOST_ALL)))
    try:
        yield
    finally:
        limit.write_text("-1")


FIRST = ("LanewiseFirstTokenBurnsFast", "LanewiseFirstTokenBurnsSlowly")
BETWEEN = ("LanewiseInterTokenBurnsFast", "LanewiseInterTokenBurnsSlowly")
FAULTS = {
    "killed": Fault(
        "SIGKILL, and started again, several times",
        ("LanewiseDown", "LanewiseCrashLoop"),
        _killed,
    ),
    "drain": Fault(
        "told to stop with a long answer to give, while clients go on asking",
        ("LanewiseNotReady", "LanewiseErrors"),
        _draining,
        (*SMALL, "--max-seqs", "1", "--max-queued-requests", "300", "--drain-timeout-s", "600"),
    ),
    "overwritten": Fault(
        "the model's file is overwritten while it is served",
        ("LanewiseStepErrors", "LanewiseErrors", "LanewiseNotReady"),
        _overwritten,
        prepare=_pack,
    ),
    "throttled": Fault(
        "a CPU quota of 0.15",
        ("LanewiseCpuThrottled",),
        _throttled,
        controller="cpu",
    ),
    "slow": Fault(
        "a thousandth of a CPU for what computes",
        (*BETWEEN, "LanewiseStepHangs"),
        _slowed,
        SMALL,
        controller="cpu",
    ),
    "memory": Fault(
        "a memory limit just above what is in use",
        ("LanewiseMemoryLow",),
        _squeezed,
        controller="memory",
    ),
    "overload": Fault(
        "eight clients for one sequence at a time and a queue of two",
        (*FIRST, "LanewiseRejectsRequests", "LanewiseQueueGrows"),
        _overloaded,
        (*SMALL, "--max-seqs", "1", "--max-queued-requests", "2"),
    ),
    "cache": Fault(
        "sequences that each fill the whole KV cache",
        ("LanewiseCacheFull",),
        _filled,
        (*SMALL, "--max-queued-requests", "300"),
    ),
}
