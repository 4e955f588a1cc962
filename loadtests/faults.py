"""What happens to a server from outside: ``python -m loadtests.faults``.

Signals in every phase, a disk that is full, files that cannot be read, an end without warning, chat
templates that do not end. Each is one server, or several after another; each says what is wrong.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from loadtests.exchange import Answer, exchange, head, post
from loadtests.hostile.grammars import optional_letters
from loadtests.hostile.honest import Clients, merged
from loadtests.hostile.making import CHAT, COMPLETION, chat
from loadtests.http_stream import StreamError, event_data
from loadtests.server import Server, answers, begin, serving, stop, wait_until_ready

DRAIN_S = 5.0
LAST_S = 2.0  # beyond the drain time
START_S = 60.0
TOKENS = 24
ANSWER_S = 60.0
TEMPLATE_S = 20.0  # for a template to be given up
LOG_BYTES = 4_096  # of a disk that is full after them
OPTIONS = ("--kv-memory", "64MiB", "--drain-timeout-s", f"{DRAIN_S:g}")
LONG = {"prompt": "The sea", "max_tokens": 60, "stream": True, "ignore_eos": True}
ENDLESS = LONG | {"max_tokens": 400, "n": 128}
LOOP = "{% for i in range(99999) %}"
TEMPLATES = {
    "two nested loops": LOOP + LOOP + "x" + 2 * "{% endfor %}",
    "a long string": "{{ 'a' * 10**9 }}",
    "a large power": "{{ 9**(9**8) }}",
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "an attribute of a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
}


@dataclass(frozen=True, slots=True)
class Site:
    """What every fault needs: the model, whether signals wait their full time, and a folder."""

    model: str | None
    quick: bool
    folder: Path

    @property
    def stopped_s(self) -> float:
        """How long a process is stopped."""
        return 1.0 if self.quick else 10.0

    def begin(self, *options: str, port: int | None = None) -> Server:
        """A server that has just been started."""
        log = Path(tempfile.mkdtemp(dir=self.folder), "log")
        return begin(log, self.model, (*OPTIONS, *options), port=port)

    @contextmanager
    def ready(self, *options: str) -> Iterator[Server]:
        """A server that is ready, and stopped in the end if it still runs."""
        server = self.begin(*options)
        try:
            wait_until_ready(server)
            yield server
        finally:
            if server.process.poll() is None:
                stop(server)


def lone_answers(server: Server) -> list[object]:
    """What the honest requests get; StreamError if one gets none."""
    return asyncio.run(Clients(server.url, ("none",), TOKENS).alone())


def ended(server: Server, limit_s: float = DRAIN_S + LAST_S) -> list[str]:
    """SIGTERM, and what was wrong with the end."""
    seconds = stop(server)
    problems = []
    if seconds > limit_s:
        problems.append(f"ended {seconds:.1f} s after SIGTERM, {limit_s:g} are allowed")
    if server.process.returncode not in (0, -signal.SIGTERM):
        problems.append(f"status {server.process.returncode} after SIGTERM")
    if "Traceback" in (text := server.log_text()):
        problems.append(f"a traceback in the log: {text[-500:]}")
    return problems


def term_while_starting(site: Site) -> list[str]:
    """SIGTERM at any time from the start of the process until it is ready."""
    problems = []
    began = time.monotonic()
    with site.ready():
        whole = time.monotonic() - began
    parts = 4 if site.quick else 12
    for part in range(parts):
        server = site.begin()
        time.sleep(whole * (part + 0.5) / parts)
        problems += [f"{part + 0.5:g}/{parts} of the start: {one}" for one in ended(server)]
    return problems


def term_when_idle(site: Site) -> list[str]:
    """SIGTERM to a server with nothing to do: it has no reason to wait."""
    with site.ready() as server:
        return ended(server, LAST_S)


async def _term_beside(
    server: Server, raw: bytes, after_s: float, whole: bool, status: int | None = None
) -> list[str]:
    asking = asyncio.create_task(exchange(server.port, raw, ANSWER_S))
    await asyncio.sleep(after_s)
    problems = await asyncio.to_thread(ended, server)
    answer = Answer(0, {}, b"")
    with suppress(OSError, TimeoutError):
        answer = await asking
    if whole and not (answer.status == 200 and b"data: [DONE]" in answer.body):
        problems.append(f"what ran was cut: {answer.status} {answer.text[-200:]}")
    if status is not None and answer.status != status:
        problems.append(f"the answer was {answer.status} {answer.text[-200:]!r}, not {status}")
    return problems


def term_while(
    site: Site, path: str, body: dict[str, object], after_s: float, whole: bool
) -> list[str]:
    """SIGTERM beside a request; ``whole`` ones are short enough to be answered to their end."""
    with site.ready() as server:
        return asyncio.run(_term_beside(server, post(path, body), after_s, whole))


def term_with_half_a_body(site: Site) -> list[str]:
    """SIGTERM beside a body that never ends: its client is told."""
    with site.ready() as server:
        raw = head(COMPLETION, 1_000_000) + b'{"prompt": '
        return asyncio.run(_term_beside(server, raw, 0.3, whole=False, status=503))


def stopped_and_continued(site: Site) -> list[str]:
    """SIGSTOP while streams run: later they go on, with the same answers."""
    with site.ready() as server:
        alone = lone_answers(server)
        found = asyncio.run(_stopped(site, server))
        problems = [] if found == alone else ["other answers after SIGSTOP and SIGCONT"]
        if not answers(f"{server.url}/health/ready"):
            problems.append("not ready after SIGCONT")
        return problems + ended(server)


async def _stopped(site: Site, server: Server) -> list[object]:
    asking = asyncio.create_task(Clients(server.url, ("none",), TOKENS).alone())
    await asyncio.sleep(0.2)
    os.kill(server.process.pid, signal.SIGSTOP)
    await asyncio.sleep(site.stopped_s)
    os.kill(server.process.pid, signal.SIGCONT)
    return await asking


def killed_and_restarted(site: Site) -> list[str]:
    """SIGKILL while it answers, and another server on the same port at once."""
    with site.ready() as server:
        alone = lone_answers(server)
        asyncio.run(_killed(server))
        again = site.begin(port=server.port)
        try:
            wait_until_ready(again)
            problems = [] if lone_answers(again) == alone else ["other answers after a restart"]
        except OSError as error:
            problems = [f"no restart on the same port: {error}"]
        return problems + ended(again)


async def _killed(server: Server) -> None:
    asking = asyncio.create_task(exchange(server.port, post(COMPLETION, ENDLESS), ANSWER_S))
    await asyncio.sleep(0.3)
    server.process.kill()
    server.process.wait()
    with suppress(OSError, TimeoutError):
        await asking


def full_disk(site: Site) -> list[str]:
    """No file may grow: the log and the measured kernel choices find no room."""
    with site.ready() as server:
        alone = lone_answers(server)
    caches = {"XDG_CACHE_HOME": tempfile.mkdtemp(dir=site.folder)}
    limits = (f"--fsize={LOG_BYTES}",)
    options = (*OPTIONS, "--log-level", "debug")
    problems = []
    with serving(site.model, options, limits=limits, variables=caches) as server:
        if any(lone_answers(server) != alone for _ in range(5)):
            problems.append("other answers while the disk is full")
        if server.log.stat().st_size > LOG_BYTES:
            problems.append("the log has grown: this test sees nothing")
        problems += ended(server)
    server = begin(Path("/dev/full"), site.model, OPTIONS)
    try:
        wait_until_ready(server)
        if lone_answers(server) != alone:
            problems.append("other answers where nothing can be logged")
    finally:
        seconds = stop(server)
    if server.process.returncode or seconds > DRAIN_S + LAST_S:
        problems.append(f"/dev/full: status {server.process.returncode} after {seconds:.1f} s")
    return problems


def unreadable_models(site: Site) -> list[str]:
    """Files that are no models, or only a part of one: an error that names them, and a status."""
    whole = Path(site.model).read_bytes() if site.model else _bundled().read_bytes()
    folder = Path(tempfile.mkdtemp(dir=site.folder))
    (folder / "empty.gguf").touch()
    (folder / "half.gguf").write_bytes(whole[: len(whole) // 2])
    (folder / "head.gguf").write_bytes(whole[:1_000])
    (folder / "noise.gguf").write_bytes(os.urandom(100_000))
    (folder / "text.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    (folder / "folder.gguf").mkdir()
    (folder / "loop.gguf").symlink_to("loop.gguf")
    os.mkfifo(folder / "pipe.gguf")
    (folder / "closed.gguf").write_bytes(whole[:1_000])
    (folder / "closed.gguf").chmod(0)
    problems = []
    for path in [*sorted(folder.iterdir()), folder / "missing.gguf"]:
        server = begin(folder / "log", str(path), OPTIONS)
        try:
            status = server.process.wait(START_S)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
            problems.append(f"{path.name}: it does not end")
            continue
        text = server.log_text()
        server.log.unlink()
        if status <= 0:
            problems.append(f"{path.name}: status {status}")
        if path.name not in text or "Traceback" in text:
            problems.append(f"{path.name}: {text[-300:]!r}")
    return problems


def _bundled() -> Path:
    import lanewise.demo

    return next(Path(lanewise.demo.__file__).parent.glob("*.gguf"))


def endless_templates(site: Site) -> list[str]:
    """Chat templates that are programs without an end: chats are refused, the rest goes on."""
    problems = []
    for name, text in TEMPLATES.items():
        path = Path(tempfile.mkdtemp(dir=site.folder), "template.jinja")
        path.write_text(text)
        server = site.begin("--chat-template", str(path))
        try:
            wait_until_ready(server)
            problems += [f"{name}: {one}" for one in asyncio.run(_chats(server))]
        except OSError as error:
            # To refuse the template at the start is right too, if that is what is said.
            if str(path) not in server.log_text() or "Traceback" in server.log_text():
                problems.append(f"{name}: {error}")
        finally:
            problems += [f"{name}: {one}" for one in ended(server)] if _runs(server) else []
    return problems


def _runs(server: Server) -> bool:
    return server.process.poll() is None


async def _chats(server: Server) -> list[str]:
    problems = []
    chats = [asyncio.create_task(exchange(server.port, post(CHAT, chat()))) for _ in range(4)]
    slowest = 0.0
    limit = time.monotonic() + TEMPLATE_S
    while not all(one.done() for one in chats) and time.monotonic() < limit:
        began = time.monotonic()
        if not await asyncio.to_thread(answers, f"{server.url}/health/live", TEMPLATE_S):
            problems.append("/health/live does not answer")
        slowest = max(slowest, time.monotonic() - began)
        await asyncio.sleep(0.05)
    if slowest > 1.0:
        problems.append(f"/health/live took {slowest:.1f} s")
    for one in chats:
        if not one.done():
            one.cancel()
            problems.append(f"a chat has no answer after {TEMPLATE_S:g} s")
        elif (answer := one.result()).status != 400:
            problems.append(f"a chat got {answer.status} {answer.text[:200]}")
    whole = await exchange(server.port, post(COMPLETION, LONG), ANSWER_S)
    if whole.status != 200 or not merged(list(event_data(whole.body)))["text"]:
        problems.append(f"a completion got {whole.status}")
    return problems


PREFILL: dict[str, object] = {"prompt": [5] * 400, "max_tokens": 1, "stream": True}
SLOW: dict[str, object] = chat(guided_regex=optional_letters(62_000))
FAULTS: dict[str, Callable[[Site], list[str]]] = {
    "SIGTERM while starting": term_while_starting,
    "SIGTERM when idle": term_when_idle,
    "SIGTERM in a prompt": lambda site: term_while(site, COMPLETION, PREFILL, 0.05, whole=True),
    "SIGTERM in an answer": lambda site: term_while(site, COMPLETION, LONG, 0.2, whole=True),
    "SIGTERM in long answers": lambda site: term_while(site, COMPLETION, ENDLESS, 0.2, whole=False),
    "SIGTERM in a grammar": lambda site: term_while(site, CHAT, SLOW, 0.3, whole=False),
    "SIGTERM in a body": term_with_half_a_body,
    "SIGSTOP": stopped_and_continued,
    "SIGKILL": killed_and_restarted,
    "full disk": full_disk,
    "unreadable model": unreadable_models,
    "endless template": endless_templates,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Try each fault; 1 if one was not borne."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.faults", description=__doc__)
    parser.add_argument("--model", help="[the bundled one]")
    parser.add_argument("--only", action="append", choices=FAULTS, metavar="FAULT")
    parser.add_argument("--quick", action="store_true", help="fewer times, and shorter")
    options = parser.parse_args(arguments)
    wrong = 0
    for name in options.only or FAULTS:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            try:
                problems = FAULTS[name](Site(options.model, options.quick, Path(folder)))
            except (OSError, StreamError) as error:
                problems = [repr(error)]
        print(f"{time.monotonic() - began:6.1f} s  {name}: {'MISSED' if problems else 'held'}")
        for problem in problems:
            print(f"    {problem}")
        wrong += bool(problems)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
