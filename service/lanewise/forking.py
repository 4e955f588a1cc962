"""Processes that are forked for a router: it is their parent, and they end with it.

A process that forks has done its imports, has one thread, and does nothing but what it is asked:
so its children start in milliseconds. Each is forked twice. The one between ends at once, and what
it forked becomes a child of the router, which has said that it takes such processes over
(``take_over``). So models go on when the process ends that they were forked from.

Messages are JSON, one in a packet of a Unix socket (SOCK_SEQPACKET), with file descriptors.
"""

import ctypes
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
MAX_MESSAGE, MAX_FDS = 1 << 20, 2
SENT_BYTES = 2 << 20  # that the kernel may hold: a message has to fit


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends for messages."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_BYTES)
    return ends


def send(sock: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send a message; OSError if it is too long, or nothing reads it."""
    socket.send_fds(sock, [json.dumps(message).encode()], fds)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message of a blocking socket and its file descriptors; None at the end."""
    packet, fds, _, _ = socket.recv_fds(sock, MAX_MESSAGE, MAX_FDS)
    return (read(packet), fds) if packet else None


def read(packet: bytes) -> dict[str, Any]:
    """The message of a packet."""
    message: dict[str, Any] = json.loads(packet)
    return message


def take_over() -> None:
    """Make this process the parent of each process below it when that one's own parent ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def is_alone() -> bool:
    """Whether this process has one thread, so that what it forks is whole."""
    return len(os.listdir("/proc/self/task")) == 1


def answer_forks(
    control: socket.socket, router: int, work: Callable[[dict[str, Any]], int | None]
) -> None:
    """Fork a process for each message, until the socket is closed.

    A message comes with the standard input and the standard error of its process, which returns
    from ``work`` with its exit status. The reply has its ``pid``, or an ``error``.
    """
    leave_signals()
    while (received := receive(control)) is not None:
        message, fds = received
        answer(control, router, fds, partial(work, message))


def leave_signals() -> None:
    """The router decides when to end: a terminal or a service manager signals every process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def heed_signals() -> None:
    """As a program does that has just started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def answer(
    control: socket.socket, router: int, fds: Sequence[int], work: Callable[[], int | None]
) -> None:
    """Fork a process and tell its ``pid``, or the ``error``; its two files are closed here."""
    try:
        reply: dict[str, Any] = {"pid": forked(control, router, fds, work)}
    except OSError as error:
        reply = {"error": error.strerror or str(error)}
    finally:
        for fd in fds:
            os.close(fd)
    send(control, reply)


def forked(
    control: socket.socket, router: int, fds: Sequence[int], work: Callable[[], int | None]
) -> int:
    """The process id of a child of the router that does some work; OSError if there is none."""
    gc.freeze()  # the collector of a child would touch, and so copy, every page
    (told, tell), (waits, go) = os.pipe(), os.pipe()
    try:
        between = os.fork()
        if between == 0:
            _fork_again(tell, (told, go), waits, lambda: _become(control, router, fds, work))
        os.close(tell)
        tell = -1
        number = int.from_bytes(os.read(told, 8), "little")
        os.waitpid(between, 0)
        if number == 0:
            raise OSError(0, "the system starts no process")
        os.write(go, b"g")  # the router is its parent now
        return number
    finally:
        for fd in {told, tell, waits, go} - {-1}:
            os.close(fd)


def _fork_again(tell: int, ours: Sequence[int], waits: int, become: Callable[[], int]) -> None:
    """In the process between: fork the child, tell its number, and end."""
    try:
        os.setsid()  # Ctrl-C is for the router, which drains first
        number = os.fork()
        if number:
            os.write(tell, number.to_bytes(8, "little"))
            os._exit(0)
        for fd in (tell, *ours):
            os.close(fd)
        if not os.read(waits, 1):
            os._exit(1)
        os.close(waits)
        os._exit(become())
    finally:
        os._exit(1)


def _become(
    control: socket.socket, router: int, fds: Sequence[int], work: Callable[[], int | None]
) -> int:
    control.close()
    end_with(router)
    heed_signals()
    take_standard(fds)
    return finished(work)


def take_standard(fds: Sequence[int]) -> None:
    """Have these as standard input and standard error."""
    for standard, fd in zip((0, 2), fds, strict=True):
        os.dup2(fd, standard)
        os.close(fd)


def finished(work: Callable[[], int | None]) -> int:
    """The exit status of some work; what it has printed is out.

    For ``os._exit``, which leaves out what an interpreter does at its end: it takes longer than
    giving the memory back.
    """
    status = 1
    try:
        status = work() or 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = status or 1
    return status


def end_with(parent: int) -> None:
    """End when the parent does; at once if it was gone before."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def call_it(name: str) -> None:
    """Name this process as lists of processes show it, in 15 bytes."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)
