"""A batch beside streams: ``python -m loadtests.batches --url http://127.0.0.1:8000``.

The server has a data directory. A batch runs alone, then another beside streams that write all the
while. What is measured is how much longer the streams wait for their next token, how long a new
stream waits for its first, and what the batch gets done.
"""

import argparse
import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.command import base_parser, positive, print_times, run_plan
from loadtests.decoders import Decoders, idle_share, run_beside
from loadtests.http_stream import Stream, StreamError, Target, post_stream
from loadtests.report import Times
from loadtests.scenario import Prompts, Scenario

BOUNDARY = "lanewise-loadtest"
LOOK_S = 0.5
FIRST_S = 3.0  # between two new streams, whose first tokens are measured


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How many streams and requests, and for how long."""

    streams: int
    answer_tokens: int  # of a stream
    pause_s: float  # of a stream between two answers
    requests: int
    common_tokens: int  # of all requests' prompts
    max_tokens: int
    seconds: float
    calm_s: float


@dataclass(frozen=True, slots=True)
class BatchReport:
    """Times in milliseconds; requests of the batch by the second."""

    itl_calm_ms: Times
    itl_beside_ms: Times
    itl_p99_ratio: float  # beside / alone
    first_calm_ms: Times
    first_beside_ms: Times
    alone_per_s: float
    beside_per_s: float
    streams_calm_per_s: float  # tokens
    streams_beside_per_s: float
    idle_share: float  # of the time beside: no stream was there
    share_of_idle: float | None  # what the batch got done, of what it would have in that time alone


class Batches:
    """The batches of a server."""

    def __init__(self, target: Target, model: str, plan: BatchPlan, prompts: Prompts) -> None:
        self._target, self._model, self._plan, self._prompts = target, model, plan, prompts

    def _ask(self, path: str, body: bytes | None = None, kind: str = "application/json") -> Any:
        request = urllib.request.Request(self._target.url(f"/v1/{path}"), body)
        request.add_header("content-type", kind)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def create(self) -> str:
        """A new batch; its id."""
        common = self._prompts.next(self._plan.common_tokens)
        lines = "".join(
            json.dumps(
                {
                    "custom_id": str(number),
                    "url": "/v1/completions",
                    "body": {
                        "model": self._model,
                        "prompt": f"{common} {self._prompts.next(32)}",
                        "max_tokens": self._plan.max_tokens,
                        "temperature": 0,
                        "ignore_eos": True,
                    },
                }
            )
            + "\n"
            for number in range(self._plan.requests)
        )
        part = f"--{BOUNDARY}\r\nContent-Disposition: form-data; name="
        form = f'{part}"purpose"\r\n\r\nbatch\r\n{part}"file"; filename="in.jsonl"\r\n\r\n{lines}'
        form += f"\r\n--{BOUNDARY}--\r\n"
        kind = f"multipart/form-data; boundary={BOUNDARY}"
        file = self._ask("files", form.encode(), kind)["id"]
        wanted = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        return str(self._ask("batches", json.dumps(wanted).encode())["id"])

    def done(self, batch: str) -> int:
        """Requests that are answered."""
        counts = self._ask(f"batches/{batch}")["request_counts"]
        if counts["failed"]:
            raise StreamError(f"{counts['failed']} requests of the batch failed")
        return int(counts["completed"])

    def cancel(self, batch: str) -> None:
        """End it."""
        self._ask(f"batches/{batch}/cancel", b"")

    async def rate(self, seconds: float) -> float:
        """Requests answered by the second, of a batch that runs for so long or to its end."""
        batch = await asyncio.to_thread(self.create)
        began, n_done = time.perf_counter(), 0
        while (took := time.perf_counter() - began) < seconds and n_done < self._plan.requests:
            await asyncio.sleep(LOOK_S)
            n_done = await asyncio.to_thread(self.done, batch)
        if n_done < self._plan.requests:
            await asyncio.to_thread(self.cancel, batch)
        return n_done / took


async def first_tokens(target: Target, scenario: Scenario, prompts: Prompts) -> list[float]:
    """Milliseconds to the first token of streams that begin one after another, until cancelled."""
    found: list[float] = []
    try:
        while True:
            stream = Stream()
            began = time.perf_counter()
            await post_stream(target, scenario.body(prompts.next(128)), scenario.timeout_s, stream)
            found.append(1000 * (stream.chunk_times[0] - began))
            await asyncio.sleep(FIRST_S)
    except asyncio.CancelledError:
        return found


async def measure(target: Target, scenario: Scenario, plan: BatchPlan) -> BatchReport:
    """A batch alone, streams alone, and both together."""
    prompts = Prompts(scenario.seed)
    batches = Batches(target, scenario.model, plan, prompts)
    alone = await batches.rate(plan.seconds)
    long = Scenario(model=scenario.model, max_tokens=plan.answer_tokens, seed=scenario.seed)
    short = Scenario(model=scenario.model, max_tokens=2, seed=scenario.seed)
    async with Decoders(target, long, plan.streams, prompts, plan.pause_s) as decoders:
        calm = asyncio.create_task(first_tokens(target, short, prompts))
        await asyncio.sleep(plan.seconds / 2)
        calm.cancel()

        async def work() -> tuple[float, list[float], float]:
            first = asyncio.create_task(first_tokens(target, short, prompts))
            began = time.perf_counter()
            rate = await batches.rate(plan.seconds)
            idle = idle_share(decoders.streams, began, time.perf_counter())
            first.cancel()
            return rate, await first, idle

        (beside, first, idle), waits = await run_beside(decoders, plan.calm_s, work)
    return BatchReport(
        itl_calm_ms=waits.calm,
        itl_beside_ms=waits.beside,
        itl_p99_ratio=(waits.beside.p99 or 0) / (waits.calm.p99 or 1),
        first_calm_ms=Times.of([one / 1000 for one in await calm]),
        first_beside_ms=Times.of([one / 1000 for one in first]),
        alone_per_s=alone,
        beside_per_s=beside,
        streams_calm_per_s=1000 * plan.streams / (waits.calm.mean or 1),
        streams_beside_per_s=1000 * plan.streams / (waits.beside.mean or 1),
        idle_share=idle,
        share_of_idle=beside / (alone * idle) if alone * idle > 0 else None,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 2 if a request failed."""
    options = _parser().parse_args(arguments)
    plan = BatchPlan(
        streams=options.streams,
        answer_tokens=options.answer_tokens,
        pause_s=options.pause,
        requests=options.requests,
        common_tokens=options.common_tokens,
        max_tokens=options.max_tokens,
        seconds=options.seconds,
        calm_s=options.calm,
    )
    report = run_plan(measure, plan, options)
    if report is None:
        return 2
    if not options.json:
        print_times(
            {
                "ITL alone": report.itl_calm_ms,
                "ITL beside a batch": report.itl_beside_ms,
                "first token alone": report.first_calm_ms,
                "first token beside a batch": report.first_beside_ms,
            }
        )
        print(f"ITL p99 beside a batch / alone: {report.itl_p99_ratio:.2f}")
        print(f"requests/s of the batch: {report.alone_per_s:.2f} alone", end=", ")
        print(f"{report.beside_per_s:.2f} beside streams")
        print(f"tokens/s of the streams: {report.streams_calm_per_s:.0f} alone", end=", ")
        print(f"{report.streams_beside_per_s:.0f} beside a batch")
        print(f"time without a stream: {report.idle_share:.0%}", end="")
        if report.share_of_idle is not None:
            print(f"; the batch got done {report.share_of_idle:.0%} of what that allows", end="")
        print()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = base_parser("python -m loadtests.batches", "A batch alone and beside streams.")
    number: dict[str, Any] = {"type": positive, "metavar": "N"}
    parser.add_argument("--streams", default=8, help="[%(default)s]", **number)
    parser.add_argument("--answer-tokens", default=1500, help="of a stream [%(default)s]", **number)
    parser.add_argument("--pause", type=float, default=0.0, help="s of a stream [%(default)s]")
    parser.add_argument("--requests", default=2000, help="of a batch [%(default)s]", **number)
    parser.add_argument("--common-tokens", default=200, help="of prompts [%(default)s]", **number)
    parser.add_argument("--max-tokens", default=32, help="of an answer [%(default)s]", **number)
    parser.add_argument("--seconds", type=float, default=40.0, help="of a batch [%(default)s]")
    parser.add_argument("--calm", type=float, default=15.0, help="s of streams [%(default)s]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
