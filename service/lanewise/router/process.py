"""The processes of one model: what keeps its file open, its server, and what plans its memory."""

import asyncio
import json
import logging
import os
import re
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lanewise.router.entries import Entry
from lanewise.router.exchange import Line, ServerGoneError
from lanewise.router.forks import Asked, Forked, NotForkedError, Nursery, reap
from lanewise.settings import Settings
from lanewise.told import told

logger = logging.getLogger(__name__)

READY_POLL_S = 0.01
KILL_AFTER_S = 10.0  # beyond the time that answers get to finish


class LoadError(Exception):
    """A model that is not there: it could not be loaded, or its server has ended."""


class Watched:
    """A process whose log is passed on, until it ends."""

    def __init__(self, name: str, process: Process | Forked, files: Sequence[Path] = ()) -> None:
        self.name, self.pid = name, process.pid
        self._process, self._files = process, files
        self._said = self._ended_for = ""
        self.ended = asyncio.create_task(self._watch())

    async def _watch(self) -> str:
        """Pass its log on; why it ended, once it has."""
        assert self._process.stderr is not None
        while True:
            try:
                line = await self._process.stderr.readline()
            except ValueError:  # longer than a line is
                continue
            if not line:
                break
            self._said = line.decode("utf-8", "replace").rstrip("\n")
            print(self._said, file=sys.stderr, flush=True)
        status = await self._process.wait()
        for file in self._files:
            file.unlink(missing_ok=True)
        if status < 0:
            return self._ended_for or f"its process was ended by {signal.Signals(-status).name}"
        reason = _last(self._said) if status else ""
        return reason or f"its process ended with status {status}"

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()


class Keeper(Watched):
    """A process that has a model's file open and its tokenizer made, and forks its servers."""

    def __init__(self, name: str, process: Forked, asked: Asked) -> None:
        super().__init__(name, process)
        self._asked = asked
        self.n_bytes = 0  # that opening took
        self.is_gone = self._is_server = False

    async def wait_until_open(self) -> None:
        """Return when it is; LoadError if its process ends before."""
        try:
            self.n_bytes = int((await self._asked.reply())["bytes"])
        except OSError:
            self._leave()
            raise LoadError(await self.ended) from None
        self.ended.add_done_callback(lambda _: self._leave())

    async def serve(self, asked: Mapping[str, object]) -> Forked | None:
        """The process of a server; None if other files lie there now, and this one ends."""
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            server = await self._asked.fork(asked, null)
        finally:
            os.close(null)
        if not isinstance(server, Forked):
            self._leave()
            return None
        if server.pid == self.pid:  # what cannot be shared becomes the server
            self._leave()
            self._is_server = True
        return server

    def _leave(self) -> None:
        self.is_gone = True
        self._asked.close()

    async def close(self) -> None:
        """End it, unless it has become a server."""
        if not self._is_server:
            self._leave()
            self._kill()
            await asyncio.wait({self.ended})


class Child(Watched):
    """A server that was started."""

    def __init__(self, name: str, process: Process | Forked, files: Sequence[Path]) -> None:
        """The first of its files is its socket; all are removed at its end."""
        super().__init__(name, process, files)
        self.line = Line(str(files[0]))
        self.ended.add_done_callback(lambda _: self.line.close())

    async def wait_until_ready(self, seconds: float) -> None:
        """Return when it answers; LoadError if it ends, or takes longer."""
        try:
            async with asyncio.timeout(seconds):
                while not await self._is_ready():
                    await asyncio.wait({self.ended}, timeout=READY_POLL_S)
                    if self.ended.done():
                        raise LoadError(self.ended.result())
        except TimeoutError:
            raise LoadError(f"it was not ready within {seconds:g} s (load_s)") from None

    async def _is_ready(self) -> bool:
        try:
            status, _ = await self.line.read(b"/health/ready")
        except ServerGoneError:
            return False
        return status == 200

    @property
    def own_bytes(self) -> int:
        """Memory that is the process's alone; mapped files are the system's to take back."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:  # it has ended
            return 0
        found = re.search(r"^RssAnon:\s*(\d+) kB$", status, re.MULTILINE)
        return int(found[1]) << 10 if found else 0

    def end(self, why: str) -> None:
        """End it at once, for a reason that its requests are told."""
        self._ended_for = why
        self._kill()

    async def stop(self, seconds: float) -> None:
        """Have it end: it may finish its answers first, for so long."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        await asyncio.wait({self.ended}, timeout=seconds)
        if not self.ended.done():
            logger.warning("%s has not ended within %g s, and is killed", self.name, seconds)
            self._kill()
            await asyncio.wait({self.ended})


class Launcher:
    """Starts servers; tests start others."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._folder = folder
        # No command line, no environment and no file shows them.
        self._keys = {
            "api_key": list(settings.api_key),
            "admin_api_key": list(settings.admin_api_key),
            "api_key_file": settings.api_key_file,
            "admin_api_key_file": settings.admin_api_key_file,
        }
        self._logs = {"log_level": settings.log_level, "log_format": settings.log_format}
        self.drain_s = settings.drain_timeout_s
        self._started = 0
        self._nursery = Nursery()
        self._kept: dict[str, asyncio.Task[Keeper]] = {}  # the longest unused first

    async def prepare(self) -> None:
        """Have the process from which others are forked: its imports take a second."""
        with suppress(OSError):  # the load will say it
            await self._nursery.prepare()

    async def plan(self, entry: Entry, budget: int) -> tuple[int, dict[str, object]]:
        """Bytes of the model's process, and settings that keep it there; LoadError if none can.

        A process of its own reads the file, which may be anything.
        """
        asked = {"settings": entry.settings, "budget": budget, "memory": entry.memory}
        status, told_of, said = await self._nursery.answer({"do": "plan"}, json.dumps(asked))
        if status:
            raise LoadError(_last(said) or "its file cannot be read")
        found = json.loads(told_of)
        return int(found["bytes"]), found["settings"]

    async def open(self, entry: Entry, more: Mapping[str, object]) -> Keeper:
        """The process that has the model's file open and its tokenizer made; LoadError if none can.

        It is kept for the next load.
        """
        task = self._kept.pop(entry.name, None)
        if task is None or (task.done() and (task.exception() or task.result().is_gone)):
            task = asyncio.create_task(self._opened(entry, more))
            task.add_done_callback(lambda one: one.cancelled() or one.exception())
        self._kept[entry.name] = task
        return await asyncio.shield(task)

    def settings_of(self, entry: Entry, more: Mapping[str, object]) -> dict[str, object]:
        """All settings of a model's server, as its YAML file would have them."""
        settings = {**self._logs, **entry.settings, **more, **self._keys}
        return settings | {"served_model_name": [entry.name, *entry.aliases]}

    async def _opened(self, entry: Entry, more: Mapping[str, object]) -> Keeper:
        settings = self.settings_of(entry, more)
        message = {"do": "keep", "name": entry.name, "settings": settings}
        keeper = Keeper(entry.name, *await self._nursery.fork(message))
        try:
            await keeper.wait_until_open()
        except BaseException:
            await keeper.close()
            raise
        return keeper

    @property
    def kept(self) -> dict[str, int]:
        """Bytes that the processes took to open their models, of each that has one."""
        done = {name: task for name, task in self._kept.items() if task.done()}
        keepers = {
            n: t.result() for n, t in done.items() if not t.cancelled() and not t.exception()
        }
        return {name: one.n_bytes for name, one in keepers.items() if not one.is_gone}

    async def let_go(self, name: str) -> None:
        """End the process that keeps a model's file open."""
        task = self._kept.pop(name, None)
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError, LoadError, OSError):
                await (await task).close()

    async def start(self, entry: Entry, more: Mapping[str, object], *, warms_up: bool) -> "Child":
        """The process, which has begun to load; OSError or LoadError if there is none."""
        self._started += 1
        path = self._folder / f"{self._started}.sock"
        asked = {"address": f"unix:{path}", "warms_up": warms_up}
        for _ in range(2):
            keeper = await self.open(entry, more)
            try:
                process = await keeper.serve(asked)
            except NotForkedError:
                raise
            except OSError:  # it has just ended
                process = None
            if process is not None:
                return Child(entry.name, process, [path])
            await self.let_go(entry.name)
        raise LoadError("its files change while they are read")

    def reap(self) -> None:
        """Let processes go that have ended and were others' children."""
        reap()

    async def close(self) -> None:
        """End the processes that were to start others."""
        await asyncio.gather(*(self.let_go(name) for name in list(self._kept)))
        await self._nursery.close()


def _last(said: str) -> str:
    """What a program said at last, before it ended."""
    lines = said.strip().split("\n")
    return told(lines[-1].removeprefix("lanewise: "))[:1000]
