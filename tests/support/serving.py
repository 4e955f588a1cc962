"""A real server process for tests: the installed command, the bundled model, a free port."""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

_OUTER_PYTHON = Path(sys.prefix).parent / "bin" / "python"
# Of the development environment, in which those of clients lie, which have no Lanewise.
SERVER_PYTHON = _OUTER_PYTHON if _OUTER_PYTHON.exists() else Path(sys.executable)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def answers(url: str) -> bool:
    """Whether a GET of ``url`` gives status 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def metric(url: str, start: str) -> float:
    """The sum of a server's samples whose lines begin like this."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Poll until ``condition`` holds; AssertionError naming ``what`` if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.1)


@contextlib.contextmanager
def running(command: list[str], ready_url: str, **options: object) -> Iterator[subprocess.Popen]:
    """A process that answers on ``ready_url``; its output is part of the failure if it does not."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, **options)
        try:
            # Two seconds are usual; where twenty others compete for a CPU it has taken sixty.
            wait_for(lambda: process.poll() is not None or answers(ready_url), ready_url, 240)
            assert process.poll() is None, f"{command[0]} ended:\n{log.read_text()}"
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def lanewise_server(*arguments: str, python: str | Path = sys.executable) -> Iterator[str]:
    """The base URL of ``lanewise serve`` with these arguments, ready to answer."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [str(python), "-m", "lanewise", "serve", "--port", str(port), *arguments]
    with running(command, f"{url}/health/ready"):
        yield url
