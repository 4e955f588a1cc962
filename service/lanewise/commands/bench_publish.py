"""``lanewise bench --publish``: the standard rows as Markdown, beside llama.cpp's of the same file.

Everything that somebody needs to measure it again stands below the table.
"""

import datetime
import hashlib
import json
import platform
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lanewise import __version__
from lanewise.commands.opening import Opened
from lanewise.host import format_size
from lanewise.runtime import kernels_in_use
from lanewise.settings import BenchSettings, SettingsError
from lanewise.store.fingerprint import plain_files, sha256_of

PROMPT, DECODE, SEQUENCES, CONTEXT = 512, 128, (1, 8), 32
NAMES = {
    f"pp{PROMPT}": f"prompt of {PROMPT} tokens",
    f"tg{DECODE}": f"decode of {DECODE} tokens",
    f"tg{DECODE}@8": f"decode of {DECODE} tokens, 8 sequences together",
}
BATCHED = "llama-batched-bench"  # beside llama-bench, which has no sequences that run together


@dataclass(frozen=True, slots=True)
class Theirs:
    """What llama.cpp's programs have measured: tokens a second by test, and how."""

    version: str
    commands: tuple[str, ...]
    speeds: Mapping[str, float]


def standard(settings: BenchSettings) -> BenchSettings:
    """The settings with the rows that are published, whatever they said of these."""
    return replace(settings, prefill=PROMPT, decode=DECODE, batch=SEQUENCES, context=CONTEXT)


def check(settings: BenchSettings, files: Sequence[Path]) -> None:
    """SettingsError where llama.cpp is asked for and cannot be run on the same file."""
    if settings.llama_bench is None:
        return
    if not settings.publish:
        raise SettingsError("llama_bench is given; accepted: together with --publish")
    if len(files) != 1 or files[0].suffix != ".gguf":
        raise SettingsError("llama_bench is given; accepted: for a model in one GGUF file")
    if not Path(settings.llama_bench).is_file():
        raise SettingsError(f"llama_bench: {settings.llama_bench} is no file")


def measure_theirs(settings: BenchSettings, opened: Opened) -> Theirs | None:
    """Run llama.cpp's programs on the same file with as many threads; None where not asked to."""
    if settings.llama_bench is None:
        return None
    program = Path(settings.llama_bench)
    common = ("-m", str(opened.checkpoint.files[0]), "-t", str(opened.threads))
    sizes = ("-p", str(PROMPT), "-n", str(DECODE), "-r", str(settings.repeat))
    commands = [[str(program), *common, *sizes, "-o", "json"]]
    tests = _json_of(commands[0])
    speeds = {}
    for test in tests:
        name = f"tg{test['n_gen']}" if test["n_gen"] else f"pp{test['n_prompt']}"
        speeds[name] = float(test["avg_ts"])
    together = program.with_name(BATCHED)
    if together.is_file():
        lengths = ("-npp", str(CONTEXT), "-ntg", str(DECODE), "-npl", "8", "-c", "4096")
        commands.append([str(together), *common, *lengths, "--output-format", "jsonl"])
        for test in _jsonl_of(commands[1]):
            speeds[f"tg{test['tg']}@{test['pl']}"] = float(test["speed_tg"])
    version = f"{tests[0]['build_number']} ({tests[0]['build_commit']})"
    return Theirs(version, tuple(shlex.join(command) for command in commands), speeds)


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SettingsError(f"llama_bench: {command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise SettingsError(f"llama_bench: {shlex.join(command)}: status {done.returncode}: {last}")
    return done.stdout


def _json_of(command: Sequence[str]) -> list[dict[str, Any]]:
    try:
        found = json.loads(_run(command))
    except ValueError as error:
        raise SettingsError(f"llama_bench: {command[0]} wrote no JSON: {error}") from error
    if not isinstance(found, list) or not found:
        raise SettingsError(f"llama_bench: {command[0]} wrote no list of tests")
    return found


def _jsonl_of(command: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in _run(command).splitlines():
        if line.startswith("{"):  # other lines are its log
            yield json.loads(line)


def digest(files: Sequence[Path]) -> str:
    """SHA-256 of the file, or of the names and digests of all files."""
    digests = {path.name: sha256_of(path) for path in plain_files(files)}
    if len(digests) == 1:
        return next(iter(digests.values()))
    lines = "".join(f"{name} {one}\n" for name, one in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def as_markdown(
    settings: BenchSettings, opened: Opened, report: Mapping[str, Any], theirs: Theirs | None
) -> str:
    """The rows, and below them what they were measured with."""
    header = ["model", "CPU", "threads", "test", "tokens/s"]
    header += ["llama.cpp", "times"] if theirs else []
    rows = [header, ["---"] * len(header)]
    for result in report["results"]:
        speed = result["tokens_per_second"]
        row = [
            *(f"{report['model']} {report['weights']}", report["cpu"], str(report["threads"])),
            *(NAMES[result["name"]], f"{speed:.1f} ± {result['spread']:.1f}"),
        ]
        if theirs is not None:
            their = theirs.speeds.get(result["name"])
            row += ["-", "-"] if their is None else [f"{their:.1f}", f"{speed / their:.2f}"]
        rows.append(row)
    table = ["| " + " | ".join(one.replace("|", "/") for one in row) + " |" for row in rows]
    return "\n".join(
        [*table, "", *(f"- {line}" for line in _notes(settings, opened, report, theirs))]
    )


def _notes(
    settings: BenchSettings, opened: Opened, report: Mapping[str, Any], theirs: Theirs | None
) -> Iterator[str]:
    files, info = opened.checkpoint.files, opened.model.info
    size = format_size(sum(path.stat().st_size for path in plain_files(files)))
    yield f"file: {opened.checkpoint.path.name}, {size}, sha256 {digest(files)}"
    yield f"kernels: {info.isa}: {', '.join(kernels_in_use(info.isa, opened.model.weights))}"
    asked = f"`{settings.weights}`" if settings.weights else "as in the file"
    yield (
        f"settings: weights {asked}, KV cache {opened.kv_type}, context {CONTEXT}, medians of"
        f" {settings.repeat}; threads {opened.placement.threads}; memory {opened.placement.memory}"
    )
    yield (
        f"versions: Lanewise {__version__} (numeric contract {info.numerics}), "
        + (f"llama.cpp {theirs.version}, " if theirs else "")
        + f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    )
    if theirs is not None:
        yield f"llama.cpp: {'; '.join(f'`{command}`' for command in theirs.commands)}"
    yield f"measured: {datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    if report["busy"]:
        yield f"others used this machine: {report['busy']}; figures are too low"
