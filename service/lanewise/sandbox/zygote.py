"""The process that workers are forked from, in a few milliseconds and with most memory in common.

It is started by the server as a new program and has one thread, so forking it is safe, which
forking the server would not be. Its standard input is a socket to the server; it ends when that
closes. It does nothing but what is asked: fork a worker, wait for one that has ended, and make
something that later workers shall have from the start, once it is known to be harmless. Limits
hold for that too: what is over its time ends this process, and the server starts another.
"""

import contextlib
import ctypes
import gc
import os
import resource
import signal
import socket
from collections.abc import Iterator
from typing import Any

from lanewise.sandbox import wire, worker
from lanewise.sandbox.memory import virtual_bytes


def main() -> None:
    """Serve until the server is gone."""
    # The server decides when to end: a terminal or a service manager signals every process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)  # before there are limits
    control = socket.socket(fileno=0)
    state = worker.State()
    while (received := wire.receive(control)) is not None:
        message, fds = received
        if message["do"] == "fork":
            reply = _fork(control, fds[0], message, state, libc)
        elif message["do"] == "reap":
            reply = {"status": os.waitpid(message["pid"], 0)[1]}
        else:
            reply = _prepare(state, message)
        wire.send(control, reply)


def _fork(
    control: socket.socket, fd: int, limits: dict[str, Any], state: worker.State, libc: ctypes.CDLL
) -> dict[str, Any]:
    gc.freeze()  # the collector of a worker would touch, and so copy, every page
    zygote = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(fd)
        return {"error": error.strerror}
    if pid == 0:
        try:
            control.close()
            worker.main(socket.socket(fileno=fd), limits, state, zygote, libc)
        finally:
            os._exit(0)
    os.close(fd)
    return {"pid": pid}


def _prepare(state: worker.State, message: dict[str, Any]) -> dict[str, Any]:
    error: str | None = f"needs more than {message['memory'] >> 20} MiB"
    with _within(message["cpu_s"], message["memory"]), contextlib.suppress(MemoryError):
        error = _made(state, message)
    return {} if error is None else {"error": error}


def _made(state: worker.State, message: dict[str, Any]) -> str | None:
    try:
        state.set_up(message["key"], message["value"])
    except MemoryError:
        raise
    except Exception as error:
        return str(error)
    return None


@contextlib.contextmanager
def _within(cpu_s: float, memory: int) -> Iterator[None]:
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = virtual_bytes() + memory
    if before != resource.RLIM_INFINITY:
        most = min(most, before)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))
