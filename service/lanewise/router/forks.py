"""The router's side of processes that are forked for it: asked over sockets, and reaped here."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping
from typing import Any

from lanewise import forking

MAX_LINE = 1 << 16
PIECE = 1 << 16

_children: "dict[int, Forked | Process]" = {}  # that are waited for where they were begun
_asking = 0  # processes that are being forked, whose numbers are not known yet


class NotForkedError(OSError):
    """The system starts no process; what was asked for one goes on."""


class Forked:
    """A process that was forked for this one; what asyncio's ``Process`` has of it."""

    def __init__(self, pid: int, stderr: asyncio.StreamReader) -> None:
        self.pid, self.stderr = pid, stderr
        # A process that was to fork a server may have become that server.
        same = _children.setdefault(pid, self)
        self._first = same if isinstance(same, Forked) else self
        self._status: int | None = None
        self._ending: asyncio.Task[int] | None = None

    @property
    def returncode(self) -> int | None:
        """Its exit status once it was waited for, below 0 for a signal."""
        return self._first._status

    async def wait(self) -> int:
        """Its exit status, below 0 for a signal."""
        if self._first is not self:
            return await self._first.wait()
        return await asyncio.shield(self.begin_waiting())

    def begin_waiting(self) -> asyncio.Task[int]:
        """Have it reaped when it ends."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._reaped())
        return self._ending

    async def _reaped(self) -> int:
        await _ended(self.pid)
        self._status = _status(self.pid)
        del _children[self.pid]
        return self._status

    def send_signal(self, number: int) -> None:
        """Send it a signal; ProcessLookupError if it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def _status(pid: int) -> int:
    """Of a process that has ended."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def _ended(pid: int) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    try:
        fd = os.pidfd_open(pid)
    except OSError:  # not every container may: then a thread waits, and leaves the status there
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return
    try:
        loop.add_reader(fd, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


class Asked:
    """A socket to a process that forks others."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._lock = asyncio.Lock()
        self._is_reading = self._is_closed = False

    async def fork(self, message: Mapping[str, Any], stdin: int) -> dict[str, Any] | Forked:
        """What was forked, or another reply; OSError if there is none.

        What is forked for a caller that was cancelled is killed.
        """
        asking = asyncio.create_task(self._fork(message, os.dup(stdin)))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(_drop)
            raise

    async def _fork(self, message: Mapping[str, Any], stdin: int) -> dict[str, Any] | Forked:
        global _asking
        said, says = os.pipe()
        _asking += 1
        try:
            async with self._lock:
                forking.send(self._sock, message, [stdin, says])
                reply = await self.reply()
        except BaseException:
            os.close(said)
            raise
        finally:
            _asking -= 1
            os.close(says)
            os.close(stdin)
        if "pid" not in reply:
            os.close(said)
            if "error" in reply:
                raise NotForkedError(0, reply["error"])
            return reply
        reader = asyncio.StreamReader(limit=MAX_LINE)
        forked = Forked(reply["pid"], reader)
        pipe = os.fdopen(said, "rb", 0)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        return forked

    async def reply(self) -> dict[str, Any]:
        """The next message; OSError if the process has ended."""
        loop, self._is_reading = asyncio.get_running_loop(), True
        try:
            packet = await loop.sock_recv(self._sock, forking.MAX_MESSAGE)
        finally:
            self._is_reading = False
            if self._is_closed:
                self._sock.close()
        if not packet:
            raise OSError(0, "the process that starts others has ended")
        return forking.read(packet)

    def close(self) -> None:
        """The process ends, if nothing else holds it up; what waits for a reply gets none."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if not self._is_reading:  # the loop must not wait for a number that is another file's
            self._sock.close()


def _drop(asking: "asyncio.Task[dict[str, Any] | Forked]") -> None:
    if not asking.cancelled() and asking.exception() is None:
        result = asking.result()
        if isinstance(result, Forked):
            result.kill()
            result.begin_waiting()


class Nursery:
    """The process from which others are forked; another is started when it has ended."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._asked: Asked | None = None
        self._starting = asyncio.Lock()
        self._is_closed = False

    async def prepare(self) -> Asked:
        """Have it; it answers when its imports are done. OSError if it cannot be started."""
        async with self._starting:
            if self._is_closed:
                raise OSError(0, "the router is shutting down")
            process = self._process
            if process is None or process.returncode is not None or self._asked is None:
                if process is not None and self._asked is not None:
                    self._asked.close()
                    _children.pop(process.pid, None)
                self._process, self._asked = await self._started()
            return self._asked

    async def _started(self) -> tuple[Process, Asked]:
        forking.take_over()
        ours, theirs = forking.pair()
        with theirs:
            command = [sys.executable, "-m", "lanewise.child", str(os.getpid())]
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=theirs.fileno(), env=environment(), start_new_session=True
                )
            except BaseException:
                ours.close()
                raise
        _children[process.pid] = process
        return process, Asked(ours)

    async def fork(self, message: Mapping[str, Any]) -> tuple[Forked, Asked]:
        """A process, and the socket to it."""
        ours, theirs = forking.pair()
        with theirs:
            try:
                forked = await self._forked(message, theirs.fileno())
            except BaseException:
                ours.close()
                raise
        return forked, Asked(ours)

    async def _forked(self, message: Mapping[str, Any], stdin: int) -> Forked:
        asked = await self.prepare()
        try:
            forked = await asked.fork(message, stdin)
        except NotForkedError:
            raise
        except OSError:
            if self._asked is asked and self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
            forked = await (await self.prepare()).fork(message, stdin)
        assert isinstance(forked, Forked)
        return forked

    async def answer(self, message: Mapping[str, Any], given: str) -> tuple[int, str, str]:
        """Exit status, output and errors of a process that reads something and writes another."""
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                forked = await self._forked(message, theirs.fileno())
            saying = asyncio.create_task(forked.stderr.read())  # it may say much meanwhile
            try:
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(ours, given.encode())
                ours.shutdown(socket.SHUT_WR)
                whole = bytearray()
                while some := await loop.sock_recv(ours, PIECE):
                    whole += some
                said = await saying
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    forked.kill()
                raise
            finally:
                ending = forked.begin_waiting()
            return await ending, whole.decode(), said.decode("utf-8", "replace")

    async def close(self) -> None:
        """End it."""
        self._is_closed = True
        process, self._process = self._process, None
        if self._asked is not None:
            self._asked.close()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            del _children[process.pid]


def reap() -> None:
    """Let processes go that have ended and came to this one from others that ended before."""
    while not _asking:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in _children:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(ended.si_pid, os.WNOHANG)


def environment() -> dict[str, str]:
    """The environment without the router's own settings, which the settings of a server have."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LANEWISE_")}
