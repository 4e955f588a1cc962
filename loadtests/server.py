"""A Lanewise server of a load test's own: started with limits, watched, and stopped."""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S = 120.0
STOP_S = 60.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Server:
    """A process that listens on 127.0.0.1, and the file that has what it wrote."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    def log_text(self) -> str:
        """What it has written to standard output and error."""
        return self.log.read_text(errors="replace")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def answers(url: str, timeout_s: float = 5.0) -> bool:
    """Whether a GET of ``url`` gives a status below 400."""
    try:
        urllib.request.urlopen(url, timeout=timeout_s).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def begin(
    log: Path,
    model: str | None,
    options: Sequence[str] = (),
    *,
    keys: Sequence[str] = (),
    port: int | None = None,
    limits: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    group: Path | None = None,
) -> Server:
    """Start ``lanewise serve`` and do not wait for it; ``group`` is a control group to start it in.

    ``limits`` are options of ``prlimit``, such as ``--data=BYTES``: they hold for the server and
    for each process that it starts, one by one. A limit of all of them together is the caller's,
    such as ``systemd-run --scope --property MemoryMax=4G`` around the whole test.
    """
    port = free_port() if port is None else port
    command = ["prlimit", *limits] if limits else []
    command += [sys.executable, "-m", "lanewise", "serve", "--port", str(port), *options]
    command += [model] if model else []
    if group is not None:
        command = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(group), *command]
    environment = dict(os.environ) | {"LANEWISE_API_KEY": ",".join(keys)} | dict(variables or {})
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    return Server(port, process, log)


def wait_until_ready(server: Server, path: str = "/health/ready", limit_s: float = START_S) -> None:
    """OSError with the end of its log if it ends, or if it is not ready in time."""
    deadline = time.monotonic() + limit_s
    while not answers(server.url + path):
        if server.process.poll() is not None:
            status = server.process.returncode
            raise OSError(f"the server ended with status {status}: {server.log_text()[-2000:]}")
        if time.monotonic() > deadline:
            raise OSError(f"the server is not ready after {limit_s:g} s")
        time.sleep(0.05)


def stop(server: Server) -> float:
    """Seconds from SIGTERM to its end; killed if it takes longer than a minute."""
    began = time.monotonic()
    server.process.terminate()
    try:
        server.process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()
    return time.monotonic() - began


@contextmanager
def serving(
    model: str | None,
    options: Sequence[str] = (),
    *,
    keys: Sequence[str] = (),
    limits: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    group: Path | None = None,
) -> Iterator[Server]:
    """A server that is ready, stopped in the end; ``group`` as for ``begin``."""
    with tempfile.TemporaryDirectory() as folder:
        server = begin(
            Path(folder, "log"),
            model,
            options,
            keys=keys,
            limits=limits,
            variables=variables,
            group=group,
        )
        try:
            wait_until_ready(server)
            yield server
        finally:
            if server.process.poll() is None:
                stop(server)


def process_tree(pid: int) -> list[int]:
    """A process and those it has started, as far as they live."""
    found = [pid]
    for parent in found:
        try:
            for children in Path(f"/proc/{parent}/task").glob("*/children"):
                found += map(int, children.read_text().split())
        except OSError:  # it ended meanwhile
            continue
    return found


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and those it has started; 0 when it is gone."""
    total = 0
    for process in process_tree(pid):
        try:
            total += int(Path(f"/proc/{process}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return PAGE_BYTES * total
