"""The server's side of the zygote and of its workers: sockets of an event loop, and signals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lanewise.sandbox import wire
from lanewise.text.isolated import start_isolated

# What the interpreter and the templates' clock need; nothing that is secret.
ENVIRONMENT = (*("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_TIME", "TZ", "TZDIR"),)

LARGE = 1 << 16  # bytes that take long enough to read for another thread


class ProcessGoneError(Exception):
    """The zygote or a worker has ended, or does not speak as it should."""


class NoProcessError(ProcessGoneError):
    """The system starts no process."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What one worker may take, in bytes, beyond what it is born with."""

    memory: int
    stack: int


class Channel:
    """Messages over one socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()

    async def ask(self, message: bytes, most_bytes: int) -> Any:
        """Send what is packed and wait for the answer; ProcessGoneError if none comes.

        An answer of more than ``most_bytes`` is an OverflowError.
        """
        try:
            await self._loop.sock_sendall(self.sock, message)
            n_json, n_raw = wire.HEADER.unpack(await self._exactly(wire.HEADER.size))
            if n_json + n_raw > most_bytes:
                raise OverflowError(n_json + n_raw)
            body = await self._exactly(n_json + n_raw)
            if len(body) > LARGE:
                return await asyncio.to_thread(wire.unpack, body, n_json)
            return wire.unpack(body, n_json)
        except OSError as error:
            raise ProcessGoneError(str(error)) from error

    async def _exactly(self, n_bytes: int) -> bytearray:
        received = self._received
        while len(received) < n_bytes:
            piece = await self._loop.sock_recv(self.sock, LARGE)
            if not piece:
                raise ProcessGoneError("the process has ended")
            received += piece
        # There is nothing behind an answer: the next one has to be asked for.
        exactly, self._received = received[:n_bytes], received[n_bytes:]
        return exactly

    def close(self) -> None:
        """Close the socket; no task may be waiting for an answer."""
        self.sock.close()


class Worker:
    """One worker; its owner asks one thing at a time, and ends it."""

    def __init__(self, zygote: Zygote, pid: int, channel: Channel) -> None:
        self._zygote = zygote
        self.pid = pid
        self._channel = channel
        self.made = set(zygote.made)  # what later jobs find
        self._ending: asyncio.Future[int | None] | None = None

    async def ask(self, message: bytes, most_bytes: int) -> Any:
        """As ``Channel.ask``."""
        return await self._channel.ask(message, most_bytes)

    def slow_down(self, nice: int) -> None:
        """Let everything else go first."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self.pid, nice)

    async def end(self) -> int | None:
        """Kill it unless it is dead; the signal that it died of, None if the zygote died too.

        It ends once, also if who waits for it is cancelled and another asks again.
        """
        if self._ending is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # not reaped: no other process has its number
            self._channel.close()  # now: the loop may end before it runs what is begun here
            self._ending = asyncio.ensure_future(self._reaped())
        return await asyncio.shield(self._ending)

    async def _reaped(self) -> int | None:
        try:
            status = await self._zygote.reap(self.pid)
        except ProcessGoneError:
            return None
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


class Zygote:
    """The process that workers are forked from."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel) -> None:
        self._process = process
        self.pid = process.pid
        self._channel = channel
        self._lock = asyncio.Lock()
        self.made: set[str] = set()
        self.is_gone = False
        self._is_killed = False

    @classmethod
    async def start(cls) -> Zygote:
        """Start one; takes a tenth of a second until it answers."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.to_thread(_popen, theirs)
            except (OSError, RuntimeError) as error:  # of the process, and of a thread for it
                ours.close()
                raise NoProcessError(getattr(error, "strerror", None) or str(error)) from error
            except BaseException:
                ours.close()  # a process that is being started ends with it
                raise
        return cls(process, Channel(ours))

    async def fork(self, limits: WorkerLimits) -> Worker:
        """A new worker."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                message = {"do": "fork", "memory": limits.memory, "stack": limits.stack}
                reply = await self._ask(message, theirs)
            if "error" in reply:
                raise NoProcessError(reply["error"])
        except BaseException:
            ours.close()
            raise
        return Worker(self, reply["pid"], Channel(ours))

    async def reap(self, pid: int) -> int:
        """Wait for a worker that has been killed; its status as ``os.waitpid`` gives it."""
        return int((await self._ask({"do": "reap", "pid": pid}))["status"])

    async def prepare(self, key: str, value: Any, cpu_s: float, memory: int) -> None:
        """Make what later workers shall have from the start, and what is known to be harmless.

        What takes longer all the same ends the zygote; another makes its workers without it.
        """
        if key not in self.made:
            within = {"cpu_s": cpu_s, "memory": memory}
            reply = await self._ask({"do": "prepare", "key": key, "value": value} | within)
            if "error" in reply:
                raise ProcessGoneError(f"{key.partition(' ')[0]}: {reply['error']}")
            self.made.add(key)

    async def _ask(self, message: Mapping[str, Any], passed: socket.socket | None = None) -> Any:
        # Shielded: half a message, or an answer left unread, would shift all later ones.
        asking = asyncio.ensure_future(self._ask_in_turn(message, passed))
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(asking)

    async def _ask_in_turn(self, message: Mapping[str, Any], passed: socket.socket | None) -> Any:
        packed = wire.pack(message)
        fd = None if passed is None else os.dup(passed.fileno())
        try:
            async with self._lock:
                return await self._ask_alone(packed, fd)
        except (ProcessGoneError, OSError) as error:
            self.is_gone = True
            raise ProcessGoneError(str(error)) from error
        finally:
            if fd is not None:
                os.close(fd)

    async def _ask_alone(self, packed: bytes, fd: int | None) -> Any:
        try:
            if fd is not None:
                head, packed = packed[: wire.HEADER.size], packed[wire.HEADER.size :]
                socket.send_fds(self._channel.sock, [head], [fd])
            return await self._channel.ask(packed, wire.PIECE)
        finally:
            if self._is_killed:
                self._channel.close()

    def kill(self) -> None:
        """End it, and with it all workers."""
        self.is_gone = self._is_killed = True
        self._process.kill()
        self._process.wait()
        if not self._lock.locked():  # otherwise the task that has the lock closes it
            self._channel.close()


def _popen(stdin: socket.socket) -> subprocess.Popen[bytes]:
    if stdin.fileno() < 0:  # a pool that got no thread does later what it was given, unasked
        raise ProcessGoneError("its socket is closed")
    return start_isolated("lanewise.sandbox.zygote", stdin, ENVIRONMENT, {})
