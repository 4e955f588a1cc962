"""A worker: one process that does one job after the other within limits, and may die of any."""

import contextlib
import ctypes
import os
import resource
import signal
import socket
from pathlib import Path
from typing import Any

from lanewise.sandbox import wire
from lanewise.sandbox.jobs import JOBS, SET_UPS, RefusedError
from lanewise.sandbox.memory import resident_bytes, virtual_bytes

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
FILES = 32
# A worker that has grown by more is replaced after the job: the next one's limit would be too low.
MAX_LEFT_OVER = 32 << 20


class State:
    """What jobs need and is made once; workers inherit what the zygote has."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def set_up(self, key: str, value: Any) -> None:
        """Make what jobs find under ``key``, whose first word says what it is."""
        self.made[key] = SET_UPS[key.partition(" ")[0]](value)


def main(
    sock: socket.socket, limits: dict[str, Any], state: State, zygote: int, libc: ctypes.CDLL
) -> None:
    """Do jobs until the server closes the socket."""
    _end_with(zygote, libc)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # drops what a dying library prints
        os.dup2(null, standard)
    with contextlib.suppress(OSError):  # where memory runs out, rather this than the server
        Path("/proc/self/oom_score_adj").write_text("1000")
    _limit(limits)
    before = resident_bytes()
    while (received := wire.receive(sock)) is not None:
        terms, _ = received
        signal.setitimer(signal.ITIMER_PROF, terms["cpu_s"])
        packed = _packed_reply(state, sock, terms["set_up"], before)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sock.sendall(packed)


def _packed_reply(state: State, sock: socket.socket, set_up: dict[str, Any], before: int) -> bytes:
    try:
        reply = _reply(state, sock, set_up)
        reply["retire"] = resident_bytes() - before > MAX_LEFT_OVER
        return wire.pack(reply)
    except MemoryError:
        return wire.pack({"failed": "memory", "retire": True})
    except RecursionError:
        return wire.pack({"failed": "depth", "retire": False})
    except BaseException as error:  # panics of the library among them
        why = f"{type(error).__name__}: {error}"[:500]
        return wire.pack({"failed": "crash", "why": why, "retire": True})


def _reply(state: State, sock: socket.socket, set_up: dict[str, Any]) -> dict[str, Any]:
    received = wire.receive(sock)
    if received is None:
        raise EOFError
    message = received[0]
    try:
        for key, value in set_up.items():
            state.set_up(key, value)
    except RefusedError as error:
        return {"refused": str(error), "made": False}
    payload = message["payload"]
    if wire.RAW in message:
        payload[wire.RAW] = message[wire.RAW]
    try:
        result = JOBS[message["job"]](state.made, payload)
        raw = result.pop(wire.RAW, b"") if isinstance(result, dict) else b""
        return {"result": result, wire.RAW: raw, "made": True}
    except RefusedError as error:
        return {"refused": str(error), "made": True}


def _end_with(zygote: int, libc: ctypes.CDLL) -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != zygote:  # it was gone before
        os._exit(0)


def _limit(limits: dict[str, Any]) -> None:
    there = virtual_bytes()
    for kind, most in (
        (resource.RLIMIT_AS, there + limits["memory"]),
        (resource.RLIMIT_STACK, limits["stack"]),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        within = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (within, within))
