"""Files of models that were made to harm: each is served, and asked beside another client.

A model of others is opened by many who never read its template or tokenizer. The server must get
ready or end in one short line; then requests that make the file do its worst get an error object,
``/health/live`` answers, another key's short requests wait for no more than a step and a half, and
no process is larger than a bar allows.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtests.exchange import Record, exchange, post
from loadtests.hostile.making import CHAT, chat
from loadtests.hostile.watch import watching
from loadtests.report import percentile
from loadtests.server import resident_bytes, serving

MIB = 1 << 20
KEYS = ("hostile-1", "probe-1")
ROUNDS, PAUSE_S = 8, 0.05
MAX_MORE = 256 * MIB  # that a file may make the server's processes hold
LIVE_WORST_MS = 100.0
STEPS_WAITED = 1.5
MAX_CHARACTERS = 500
REPLACED = {"String": "a"}


@dataclass(frozen=True, slots=True)
class HostileFile:
    """What is changed in a model, and texts that make it do its worst."""

    template: str | None = None
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    texts: tuple[str, ...] = ("hi",)
    accepted: tuple[int, ...] = (200, 400)


def _replace(pattern: Mapping[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _times(step: dict[str, Any], count: int) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [step] * count}


def _cut_at(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps = [split | {"invert": False}, byte_level | {"use_regex": False}]
    return {"type": "Sequence", "pretokenizers": steps}


def _template(text: str) -> HostileFile:
    return HostileFile(template=text, accepted=(400,))


RUNS = ("a" * 28 + "c", "a" * 240, "a" * 60_000 + "c")
FILES: dict[str, HostileFile] = {
    "template: product": _template("{{ 'a' * 10**10 }}"),
    "template: filter": _template("{{ 'x' | center(10**9) }}"),
    "template: format": _template("{{ '%*d' % (10**9, 1) }}"),
    "template: json": _template("{{ messages | tojson(indent=10**8) }}"),
    "template: default of a macro": _template(
        "{% macro f(x='a' * 10**10) %}{{ x }}{% endmacro %}{{ f() }}"
    ),
    "template: words for a terminal": _template(
        "{{ raise_exception('\\n\\x1b[2JINFO forged' * 9999) }}"
    ),
    "tokenizer: 32 for one, three times": HostileFile(
        tokenizer={"normalizer": _times(_replace(REPLACED, "a" * 32), 3)}, texts=RUNS
    ),
    "tokenizer: two for one, forty times": HostileFile(
        tokenizer={"normalizer": _times(_replace(REPLACED, "aa"), 40)}, texts=RUNS
    ),
    "tokenizer: exponential expression": HostileFile(
        tokenizer={"pre_tokenizer": _cut_at("(a+)+b|x")}, texts=RUNS
    ),
    "tokenizer: quadratic expression": HostileFile(
        tokenizer={"pre_tokenizer": _cut_at(r"a+$|b")}, texts=RUNS
    ),
    "tokenizer: expression of a normalizer": HostileFile(
        tokenizer={"normalizer": _replace({"Regex": "(a+)+b|x"}, "b")}, texts=RUNS
    ),
}


@dataclass(slots=True)
class Outcome:
    """What became of one file."""

    record: Record = field(default_factory=Record)
    alone_ms: float = 0.0
    beside_ms: float = 0.0
    live_worst_ms: float = 0.0
    more_bytes: int = 0

    def line(self, name: str) -> str:
        """A line of a report."""
        statuses = ", ".join(f"{n} x {status}" for status, n in self.record.outcomes.items())
        return (
            f"{name}: {statuses}; live {self.live_worst_ms:.0f} ms at worst, a short request"
            f" {self.alone_ms:.0f} ms alone and {self.beside_ms:.0f} beside,"
            f" {self.more_bytes / MIB:.0f} MiB more"
        )


def packed_directory(folder: Path) -> Path:
    """The bundled model as a directory with a tokenizer.json, which can be changed."""
    from lanewise.loading.checkpoints.opening import open_checkpoint
    from lanewise.text.tokenizer import Tokenizer

    out = folder / "model"
    command = [sys.executable, "-m", "lanewise", "pack", "-o", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open_checkpoint(out) as checkpoint:
        tokenizer = Tokenizer.from_files(checkpoint.tokenizer)
        template = tokenizer.chat_template
        names = dict(tokenizer.special_tokens)
        (out / "tokenizer.json").write_text(tokenizer.whole.to_str())
    if template is not None:
        names["chat_template"] = template.source()
    (out / "tokenizer_config.json").write_text(json.dumps(names))
    for path in out.glob("*.json"):
        if path.name not in ("tokenizer.json", "tokenizer_config.json", "config.json"):
            path.unlink()
    return out


@contextmanager
def written(hostile: HostileFile, model: Path) -> Iterator[None]:
    """The model with what is hostile in it."""
    files = {name: (model / name).read_text() for name in ("tokenizer.json", "config.json")}
    changed = json.loads(files["tokenizer.json"]) | dict(hostile.tokenizer)
    (model / "tokenizer.json").write_text(json.dumps(changed))
    template = model / "chat_template.jinja"
    if hostile.template is not None:
        template.write_text(hostile.template)
    try:
        yield
    finally:
        (model / "tokenizer.json").write_text(files["tokenizer.json"])
        template.unlink(missing_ok=True)


def tried(name: str, model: Path, memory_limit: int, slack: float) -> Outcome:
    """Serve one file and ask what hurts."""
    hostile, outcome = FILES[name], Outcome()
    limits = (f"--data={memory_limit}",)
    with (
        written(hostile, model),
        serving(str(model), ["--kv-memory", "64MiB"], keys=KEYS, limits=limits) as server,
        watching(server.port, server.process.pid) as watcher,
    ):
        before = resident_bytes(server.process.pid)
        outcome.alone_ms = asyncio.run(_short(server.port, ROUNDS))
        began = time.perf_counter()
        outcome.beside_ms = asyncio.run(_beside(server.port, hostile, outcome.record))
        sight = watcher.finish()
        outcome.live_worst_ms = sight.live_worst_ms(began, time.perf_counter())
        outcome.more_bytes = sight.memory_peak(began, time.perf_counter()) - before
        if server.process.poll() is not None:
            outcome.record.problems.append("the process ended")
        outcome.record.problems += _odd_lines(server.log_text())
    bars = {
        f"/health/live took {outcome.live_worst_ms:.0f} ms": outcome.live_worst_ms
        > LIVE_WORST_MS * slack,
        f"a short request took {outcome.beside_ms:.0f} ms": outcome.beside_ms
        > (STEPS_WAITED * outcome.alone_ms + PAUSE_S * 1000) * slack,
        f"{outcome.more_bytes / MIB:.0f} MiB more": outcome.more_bytes > MAX_MORE,
    }
    outcome.record.problems += [line for line, is_over in bars.items() if is_over]
    return outcome


async def _short(port: int, count: int) -> float:
    """The median of milliseconds that a short request takes; its prompt is ids, not text."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        await exchange(port, post("/v1/completions", {"prompt": [1], "max_tokens": 1}, KEYS[1]))
        taken.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(PAUSE_S)
    return percentile(sorted(taken), 50) or 0.0


async def _beside(port: int, hostile: HostileFile, record: Record) -> float:
    async def ask(path: str, body: object) -> None:
        answer = await exchange(port, post(path, body, KEYS[0]))
        record.judge(f"{path} {str(body)[:60]}", answer, hostile.accepted)
        if answer.status == 500:
            record.problems.append(f"{path}: {answer.text[:200]}")

    async def attack() -> None:
        for _ in range(3):
            for text in hostile.texts:
                asked = [ask(CHAT, chat(messages=[{"role": "user", "content": text}]))]
                if hostile.template is None:
                    body = {"prompt": text, "max_tokens": 1}
                    asked += [ask("/v1/completions", body), ask("/tokenize", {"prompt": text})]
                await asyncio.gather(*asked)

    attacking = asyncio.create_task(attack())
    found = await _short(port, ROUNDS)
    await attacking
    return found


def _odd_lines(log: str) -> list[str]:
    lines = [line for line in log.split("\n") if line]
    odd = [line for line in lines if len(line) >= MAX_CHARACTERS or not line.isprintable()]
    traces = [line for line in lines if line.startswith(("Traceback", "  Traceback"))]
    return [f"the log has a line of {len(line)} characters: {line[:80]!r}" for line in odd + traces]


def try_files(names: Sequence[str], memory_limit: int, slack: float) -> dict[str, Outcome]:
    """Serve each of some files."""
    if not names:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        model = packed_directory(Path(folder))
        return {name: tried(name, model, memory_limit, slack) for name in names}
