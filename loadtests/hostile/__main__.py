"""Hostile requests beside honest streams: ``python -m loadtests.hostile``.

Starts ``lanewise serve`` with several API keys under a limit of memory, takes the answers of honest
streams while nothing else runs, and lets them run on while every kind of hostile request is sent.
The process must stay, ``/health/live`` must answer, memory must come back, every honest answer must
be the one from before, and short requests must not wait for long ones. Status 1 if a bar is missed.

The limit of memory is RLIMIT_DATA of each process of the server; that all of them together stay
below it is measured. With ``--group`` it is that of a control group, by which the server plans its
memory, and which would end it. Hostile files of models have servers of their own.
"""

import argparse
import asyncio
import re
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from loadtests.command import positive
from loadtests.exchange import exchange, post
from loadtests.hostile.files import FILES, try_files
from loadtests.hostile.grammars import optional_letters
from loadtests.hostile.making import CHAT, chat
from loadtests.hostile.run import HOSTILE_KEY, KEYS, KINDS, STOP, Plan, live_through
from loadtests.hostile.verdict import Bars, Row, overall, print_rows, rows_of, waits
from loadtests.server import Server, serving, stop

MIB = 1 << 20
DRAIN_S, LAST_S = 5.0, 2.0
SLOW_AT_THE_END = 8
CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\} 1", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the kinds and print a table; 1 if a bar is missed."""
    options = _parser().parse_args(arguments)
    asked = list(options.only or (*KINDS, *FILES))
    kinds, files = ([kind for kind in asked if (kind in FILES) == is_file] for is_file in (0, 1))
    rows: dict[str, Row] = {}
    lines: list[str] = []
    missed: list[str] = []
    began = time.monotonic()
    while kinds:
        plan = Plan(kinds, options.rounds, options.tokens, options.probes, options.seed)
        died_of = _one_life(plan, options, rows, lines, missed)
        # After a death the rest is tried on a new server.
        kinds = kinds[kinds.index(died_of) + 1 :] if died_of else []
    for name, outcome in try_files(files, options.memory_limit * MIB, options.slack).items():
        lines.append(outcome.line(name))
        rows[name] = Row(
            name,
            outcomes=outcome.record.outcomes,
            live_worst_ms=outcome.live_worst_ms,
            problems=outcome.record.problems,
        )
    print_rows(list(rows.values()))
    print("\n".join(lines))
    print(f"{time.monotonic() - began:.0f} s in all")
    for line in missed:
        print(f"MISSED: {line}")
    return 1 if missed or any(row.problems for row in rows.values()) else 0


def _one_life(
    plan: Plan,
    options: argparse.Namespace,
    rows: dict[str, Row],
    lines: list[str],
    missed: list[str],
) -> str | None:
    """Start a server and run the plan; the kind that it did not survive, if one."""
    bars = Bars(options.memory_limit * MIB, options.slack)
    serve = ["--drain-timeout-s", f"{DRAIN_S:g}"]
    limits: tuple[str, ...] = ()
    if options.group is None:
        serve += ["--kv-memory", f"{options.kv_memory}MiB"]
        limits = (f"--data={bars.memory_limit}",)
    serve += ["--max-queued-requests", "1024", "--max-queued-tokens", "4194304"]
    with serving(options.model, serve, keys=KEYS, limits=limits, group=options.group) as server:
        life = live_through(server, plan, _kv_tokens(server) if plan.rounds > 1 else 0)
        for row in rows_of(life, bars):
            rows[row.kind] = row
        for seen, wrong in (overall(life, bars), waits(life, bars)):
            lines += seen
            missed += wrong
        if life.died_of is None:
            seconds = asyncio.run(_end(server))
            line = f"SIGTERM beside slow grammars: ended after {seconds:.1f} s"
            rows[STOP] = Row(
                STOP, problems=[] if seconds <= (DRAIN_S + LAST_S) * bars.slack else [line]
            )
            lines.append(line)
    if options.log:
        with open(options.log, "a", encoding="utf-8") as log:
            log.write(life.log)
    return life.died_of


async def _end(server: Server) -> float:
    """Seconds from SIGTERM to the end of a process with slow grammars to compile."""
    raw = post(CHAT, chat(guided_regex=optional_letters(62_000)), HOSTILE_KEY)
    slow = [asyncio.create_task(exchange(server.port, raw)) for _ in range(SLOW_AT_THE_END)]
    await asyncio.sleep(1.0)
    seconds = await asyncio.to_thread(stop, server)
    for one in slow:
        one.cancel()
        with suppress(asyncio.CancelledError, OSError, TimeoutError):
            await one
    return seconds


def _kv_tokens(server: Server) -> int:
    """How many tokens the KV cache holds, by the server's own metrics."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        found = CACHE.search(answer.read().decode())
    labels = dict(re.findall(r'(\w+)="(\w+)"', found[1])) if found else {}
    return int(labels.get("num_gpu_blocks", 0)) * int(labels.get("block_size", 0))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.hostile",
        description="Hostile requests of every kind beside honest streams.",
    )
    parser.add_argument("--model", help="[the bundled one]")
    parser.add_argument(
        "--only",
        action="append",
        choices=(*KINDS, *FILES),
        metavar="KIND",
        help=f"one of {', '.join((*KINDS, *FILES))}",
    )
    parser.add_argument("--rounds", type=positive, default=2, help="of all kinds [%(default)s]")
    parser.add_argument(
        "--tokens", type=positive, default=48, help="of an honest answer [%(default)s]"
    )
    parser.add_argument(
        "--probes", type=positive, default=200, help="of one tenant into another [%(default)s]"
    )
    parser.add_argument(
        "--kv-memory", type=positive, default=1024, metavar="MIB", help="[%(default)s]"
    )
    parser.add_argument(
        "--memory-limit", type=positive, default=4096, metavar="MIB", help="[%(default)s]"
    )
    parser.add_argument(
        "--group",
        type=Path,
        metavar="DIR",
        help="a control group with that limit, /sys/fs/cgroup/…, to start servers in",
    )
    parser.add_argument(
        "--slack", type=float, default=1.0, metavar="X", help="times the time allowed [%(default)s]"
    )
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument("--log", metavar="FILE", help="append what the servers wrote to a file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
