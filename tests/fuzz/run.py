"""Runs fuzz targets for a time: ``python -m tests.fuzz.run [TARGET …] [--seconds 60] [--jobs 2]``.

Prints a line for each: executions, coverage, findings. Exits with 1 if there was a finding, whose
input is then in build/fuzz-findings/TARGET and the end of its log printed. Corpora grow in
build/fuzz-corpus/TARGET. ``--executions`` with ``--seed`` begins from the seeds alone and does the
same on every machine, as long as no target reaches ``--seconds`` first.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path

from tests.fuzz.names import NATIVE, PYTHON, ROOT, made_up_inputs, module_of, regressions_of

BUILD = ROOT / "build"
LIMITS = ("-timeout=10", "-rss_limit_mb=2048", "-max_len=8192", "-print_final_stats=1")
# A fuzzer that finds something inside an allocation may never say so.
PATIENCE_S = 600
# Slow targets get a part of the executions asked for, so that time ends none of them.
SLOWER = {"kernels": 20, "session": 50, "encode": 50, "lanes": 2, "hf_tokenizer": 10}
# Of a log that ends in a finding: the last lines that are no statistics.
LOG_TAIL = 30
STATUS = re.compile(r"^#(\d+)\t.* cov: (\d+) ft: (\d+) corp: (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What one target did."""

    name: str
    executions: int
    edges: int
    features: int
    corpus: int
    seconds: float
    finding: str | None  # why it ended early, and the end of its log

    def line(self) -> str:
        said = self.finding or "nothing found"
        return (
            f"{self.name:<15} {self.executions:>9} executions {self.seconds:>6.0f} s"
            f" {self.edges:>6} edges {self.features:>7} features {self.corpus:>5} inputs  {said}"
        )


def quoted(word: bytes) -> str:
    """An entry of a libFuzzer dictionary."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in word) + '"'


def write_corpus(name: str) -> list[str]:
    """Write seeds, regressions and words of a target; return the options that name them."""
    corpus, findings = BUILD / "fuzz-corpus" / name, BUILD / "fuzz-findings" / name
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    inputs = [path.read_bytes() for path in regressions_of(name)]
    options = [f"-artifact_prefix={findings}/"]
    if name in NATIVE:
        inputs += made_up_inputs()
        options.append("-len_control=0")
    else:
        target = module_of(name)
        with tempfile.TemporaryDirectory() as folder:
            inputs += target.seeds(Path(folder))
        words = [word for word in target.words() if word]
        if words:
            dictionary = BUILD / "fuzz-corpus" / f"{name}.dict"
            dictionary.write_text("".join(f"{quoted(word)}\n" for word in words))
            options.append(f"-dict={dictionary}")
    for data in inputs:
        (corpus / sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    return [str(corpus), *options]


def command_of(name: str) -> list[str]:
    """How a target is started."""
    if name in PYTHON:
        return [sys.executable, "-m", "tests.fuzz.python_target", name]
    return [str(BUILD / "fuzz" / f"fuzz_{name}")]


def end_of(log: str) -> str:
    """What a fuzzer said last, without its statistics and the bytes of the input."""
    said = [line[:400] for line in log.splitlines() if not re.match("#[0-9]|stat::|0x", line)]
    return "\n".join(said[-LOG_TAIL:])


def run_target(name: str, seconds: int, same: Sequence[str]) -> Outcome:
    """Fuzz one target for so long, or until it finds something; `same`: options of a fixed run."""
    if same:
        shutil.rmtree(BUILD / "fuzz-corpus" / name, ignore_errors=True)
    options = [*write_corpus(name), f"-max_total_time={seconds}", *same, *LIMITS]
    log = BUILD / "fuzz-findings" / f"{name}.log"
    began = time.monotonic()
    # Panics of the tokenizers' library are caught: their backtraces take seconds and are not read.
    environment = {**os.environ, "RUST_BACKTRACE": "0"}
    with log.open("w") as output:
        fuzzer = subprocess.Popen(
            [*command_of(name), *options],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            status = fuzzer.wait(seconds + PATIENCE_S)
        except subprocess.TimeoutExpired:
            fuzzer.kill()
            status = fuzzer.wait()
    text = log.read_text(errors="replace")
    statuses = STATUS.findall(text)
    executions, edges, features, corpus = map(int, statuses[-1]) if statuses else (0, 0, 0, 0)
    if total := re.search(r"stat::number_of_executed_units:\s+(\d+)", text):
        executions = int(total[1])
    finding = None if status == 0 else f"FINDING, status {status}: see {log}\n{end_of(text)}"
    took = time.monotonic() - began
    return Outcome(name, executions, edges, features, corpus, took, finding)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the targets; 1 if one of them found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    known = [*NATIVE, *PYTHON]
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(known))
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--executions", type=int, help="at most, for each target")
    parser.add_argument("--seed", type=int, help="of the fuzzer's random numbers")
    options = parser.parse_args(arguments)

    def fixed(name: str) -> list[str]:
        seed = [] if options.seed is None else [f"-seed={options.seed}"]
        if options.executions is None:
            return seed
        return [*seed, f"-runs={options.executions // SLOWER.get(name, 1)}"]

    if unknown := set(options.targets) - set(known):
        parser.error(f"{', '.join(sorted(unknown))}: no target; known: {', '.join(known)}")
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        names = options.targets or known
        for outcome in pool.map(lambda name: run_target(name, options.seconds, fixed(name)), names):
            print(outcome.line(), flush=True)
            failed += outcome.finding is not None
    print(f"{len(names)} targets, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
