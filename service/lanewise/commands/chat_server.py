"""A server of its own for one conversation: a process that ends with the command."""

import contextlib
import ctypes
import dataclasses
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lanewise.commands.chat_client import ChatClient, ChatError
from lanewise.settings import ModelSettings, flag_of, variable_of

PR_SET_PDEATHSIG = 1
POLL_S, ASK_S = 0.05, 5.0
STOP_S = 10.0
READY = re.compile(r" on (http://127\.0\.0\.1:\d+)$")
STAMP = re.compile(r"^\S+ \S+ (?:INFO|WARNING|ERROR|DEBUG) +")


def flags_of(settings: ModelSettings) -> list[str]:
    """The flags that have a server load a model as these settings say."""
    flags = []
    for item in dataclasses.fields(ModelSettings):
        value = getattr(settings, item.name)
        if value != item.default:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            flags += [flag_of(item.name), text]
    return flags


@contextlib.contextmanager
def own_server(arguments: Sequence[str], say: Callable[[str], None]) -> Iterator[ChatClient]:
    """Start ``lanewise serve`` on a free port of this machine, behind a random key.

    ``say`` is given the lines of its log until it is ready; ChatError if it never is.
    """
    key = secrets.token_urlsafe(32)
    environment = os.environ | {variable_of("api_key"): key}
    command = [
        *(sys.executable, "-m", "lanewise", "serve", *arguments),
        *("--host", "127.0.0.1", "--port", "0", "--log-level", "info", "--log-format", "text"),
    ]
    libc = ctypes.CDLL(None)

    def end_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("wb") as out:
            # A session of its own: Ctrl-C is for the answer, not for the server.
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        try:
            yield ChatClient(_wait(process, log, say), key)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], log: Path, say: Callable[[str], None]) -> str:
    """The server's URL, once it is ready."""
    url: str | None = None
    said = 0
    while True:
        has_ended = process.poll() is not None
        lines = log.read_text("utf-8", "replace").split("\n")[:-1]
        for line in lines[said:]:
            message = STAMP.sub("", line)
            if found := READY.search(message):
                url = found[1]
            say(message)
        said = len(lines)
        if url is not None and _is_ready(url):
            return url
        if has_ended:
            raise ChatError(lines[-1].removeprefix("lanewise: ") if lines else "no server")
        time.sleep(POLL_S)


def _is_ready(url: str) -> bool:
    # No proxy stands before this machine, whatever the environment says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/health/ready", timeout=ASK_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
