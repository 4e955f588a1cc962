"""Runs the router in a process of its own, with toy servers behind it."""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvloop

from lanewise.api.observing.logs import set_up_logging
from lanewise.router.entries import read_catalogue
from lanewise.router.folder import socket_folder
from lanewise.router.forks import environment
from lanewise.router.process import Child, Launcher
from lanewise.router.serve import route
from lanewise.server.listener import bind
from lanewise.settings import Settings, resolve_mapping
from processes import children
from serving import free_port, wait_for

SUPPORT = Path(__file__).parent


class ToyLauncher(Launcher):
    """Starts toys, each of which takes what its entry says."""

    async def plan(self, entry, budget):
        del budget
        return entry.memory or 1, {}

    async def prepare(self):
        """Tests count processes."""

    async def open(self, entry, more):
        """Toys have no files."""

    async def start(self, entry, more, *, warms_up):
        del warms_up
        self._started += 1
        path, config = (self._folder / f"{self._started}.{kind}" for kind in ("sock", "yaml"))
        config.write_text(json.dumps(self.settings_of(entry, more)))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(SUPPORT / "toy_child.py"), str(config), f"unix:{path}"),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
            start_new_session=True,
        )
        return Child(entry.name, process, [path, config])

    def reap(self):
        """The toys are asyncio's."""


@dataclass
class RunningRouter:
    """A router to talk to."""

    url: str
    process: subprocess.Popen
    folder: Path
    log: Path
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def states(self) -> dict[str, str]:
        return self.client.get("/health/ready").json()["models"]

    def children(self) -> list[int]:
        return children(self.process.pid)

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        self.process.send_signal(with_signal)
        return self.process.wait(60)


@contextlib.contextmanager
def toy_router(tmp_path: Path, catalogue: dict, **settings: object) -> Iterator[RunningRouter]:
    """The router of these models, which listens."""
    file, folder, log = tmp_path / "models.yaml", tmp_path / "run", tmp_path / "log"
    folder.mkdir(exist_ok=True)
    file.write_text(json.dumps(catalogue))
    port = free_port()
    given = json.dumps({"host": "127.0.0.1", "port": port, "models": str(file), **settings})
    url = f"http://127.0.0.1:{port}"
    # A test's own folder has a longer name than addresses of sockets may have.
    short = Path(tempfile.mkdtemp(prefix="lw"), "run")
    short.symlink_to(folder)
    with log.open("wb") as out:
        command = [sys.executable, __file__, given, str(short)]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:

        def is_up() -> bool:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(url + "/health/live").status_code == 200
            return False

        wait_for(is_up, "the router")
        router = RunningRouter(url, process, folder, log)
        with router.client:
            yield router
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)
        shutil.rmtree(short.parent)


def main(given: str, folder: str) -> None:
    settings = resolve_mapping(Settings, json.loads(given), "test")
    set_up_logging("info", "text")
    catalogue = read_catalogue(settings.models, settings)
    tempfile.tempdir = folder
    with (
        socket_folder() as inner,
        bind(settings.host, settings.port) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        launcher = ToyLauncher(settings, inner)
        runner.run(route(settings, catalogue, launcher, catalogue.memory, listener))


if __name__ == "__main__":
    main(*sys.argv[1:])
