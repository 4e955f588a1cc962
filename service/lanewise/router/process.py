"""The process of one model's server, and how its memory is planned before it is started."""

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
from lanewise.settings import Settings
from lanewise.told import told

logger = logging.getLogger(__name__)

READY_POLL_S = 0.02
KILL_AFTER_S = 10.0  # beyond the time that answers get to finish
MAX_LINE = 1 << 16


class LoadError(Exception):
    """A model that is not there: it could not be loaded, or its server has ended."""


class Launcher:
    """Starts servers; tests start others."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._folder = folder
        # Files have the keys: no command line and no environment shows them.
        self._keys = {
            "api_key": list(settings.api_key),
            "admin_api_key": list(settings.admin_api_key),
            "api_key_file": settings.api_key_file,
            "admin_api_key_file": settings.admin_api_key_file,
        }
        self._logs = {"log_level": settings.log_level, "log_format": settings.log_format}
        self.drain_s = settings.drain_timeout_s
        self._started = 0
        self._spare: asyncio.Task[Process] | None = None
        self._is_closed = False

    async def plan(self, entry: Entry, budget: int) -> tuple[int, dict[str, object]]:
        """Bytes of the model's process, and settings that keep it there; LoadError if none can.

        A process of its own reads the file, which may be anything.
        """
        asked = json.dumps({"settings": entry.settings, "budget": budget, "memory": entry.memory})
        command = [sys.executable, "-m", "lanewise.router.sizing"]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
        )
        try:
            told_of, said = await process.communicate(asked.encode())
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            raise
        if process.returncode:
            raise LoadError(_last(said.decode("utf-8", "replace")) or "its file cannot be read")
        found = json.loads(told_of)
        return int(found["bytes"]), found["settings"]

    async def prepare(self) -> None:
        """Have a process ready for the next load: imports take it longer than a packed model."""
        if self._spare is None and not self._is_closed:
            # Not awaited where it is seen: one is enough.
            self._spare = asyncio.create_task(spawned(self._waiting, asyncio.subprocess.PIPE))
            with suppress(OSError):  # the load will say it
                await asyncio.shield(self._spare)

    async def close(self) -> None:
        """End the process that waits."""
        self._is_closed = True
        spare, self._spare = self._spare, None
        if spare is not None:
            with suppress(OSError, ProcessLookupError):
                process = await spare
                process.kill()
                await process.wait()

    @property
    def _waiting(self) -> list[str]:
        return [sys.executable, "-m", "lanewise.child", str(os.getpid())]

    async def begin(self, config: Path, address: str) -> Process:
        """A server with this file of settings that will listen there."""
        spare, self._spare = self._spare, None
        process = None if spare is None else await spare
        if process is None or process.returncode is not None:
            process = await spawned(self._waiting, asyncio.subprocess.PIPE)
        assert process.stdin is not None
        arguments = ["serve", "--config", str(config), "--host", address]
        process.stdin.write(json.dumps(arguments).encode() + b"\n")
        process.stdin.close()
        return process

    async def start(self, entry: Entry, more: Mapping[str, object]) -> "Child":
        """The process, which has begun to load."""
        self._started += 1
        socket = self._folder / f"{self._started}.sock"
        config = self._folder / f"{self._started}.yaml"
        settings = {**self._logs, **entry.settings, **more, **self._keys}
        settings["served_model_name"] = [entry.name, *entry.aliases]
        config.touch(0o600)
        config.write_text(json.dumps(settings))  # JSON is YAML
        process = await self.begin(config, f"unix:{socket}")
        return Child(entry.name, process, socket, config)


async def spawned(command: Sequence[str], stdin: int = asyncio.subprocess.DEVNULL) -> Process:
    """A process whose log can be read."""
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=stdin,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(),
        start_new_session=True,  # Ctrl-C is for the router, which drains first
        limit=MAX_LINE,
    )


class Child:
    """A server that was started."""

    def __init__(self, name: str, process: Process, socket: Path, config: Path) -> None:
        self.name, self.pid = name, process.pid
        self.line = Line(str(socket))
        self._process, self._files = process, (socket, config)
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
        self.line.close()
        for file in self._files:
            file.unlink(missing_ok=True)
        if status < 0:
            return self._ended_for or f"its process was ended by {signal.Signals(-status).name}"
        reason = _last(self._said) if status else ""
        return reason or f"its process ended with status {status}"

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
        with suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self, seconds: float) -> None:
        """Have it end: it may finish its answers first, for so long."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        await asyncio.wait({self.ended}, timeout=seconds)
        if not self.ended.done():
            logger.warning("%s has not ended within %g s, and is killed", self.name, seconds)
            with suppress(ProcessLookupError):
                self._process.kill()
            await asyncio.wait({self.ended})


def _environment() -> dict[str, str]:
    """The environment without the router's own settings, which the file of a server has."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LANEWISE_")}


def _last(said: str) -> str:
    """What a program said at last, before it ended."""
    lines = said.strip().split("\n")
    return told(lines[-1].removeprefix("lanewise: "))[:1000]
