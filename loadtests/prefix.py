"""Many users behind one long beginning: ``python -m loadtests.prefix --url http://127.0.0.1:8000``.

Measured after another: the common beginning and one user's own words where nothing of them is
cached, then users one after another behind a cached beginning, then all users at once behind
another beginning, of which nothing is cached when they come.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from loadtests.__main__ import first_model
from loadtests.http_stream import Stream, StreamError, Target, post_stream
from loadtests.report import Times
from loadtests.scenario import Prompts, Scenario

COLD = 3  # requests whose median counts as cold


@dataclass(frozen=True, slots=True)
class Plan:
    """How many users, and tokens of what they send."""

    users: int
    common_tokens: int
    own_tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    """Times to the first token in milliseconds, as parts of a cold one, and what was cached."""

    ttft_cold_ms: Times
    ttft_cached_ms: Times
    ttft_together_ms: Times
    cached_ratio: float  # the median of users one after another
    together_ratio: float  # the 95th percentile of users at once
    prompt_tokens: int  # of all users at once
    cached_tokens: int | None  # of these; None where the server does not say


async def measure(target: Target, scenario: Scenario, plan: Plan) -> Report:
    """Run the phases; StreamError if a request fails."""
    prompts = Prompts(scenario.seed)
    await prompts.calibrate(target, scenario)
    beginning = prompts.next(plan.common_tokens)

    async def ask() -> Stream:
        prompt = f"{beginning} {prompts.next(plan.own_tokens)}"
        return await post_stream(target, scenario.body(prompt), scenario.timeout_s)

    cold = []
    for _ in range(COLD):
        beginning = prompts.next(plan.common_tokens)
        cold.append(await ask())
    cached = [await ask() for _ in range(plan.users)]
    beginning = prompts.next(plan.common_tokens)
    together = await asyncio.gather(*(ask() for _ in range(plan.users)))
    times = [Times.of(map(_first_token, streams)) for streams in (cold, cached, together)]
    ttft_cold, ttft_cached, ttft_together = times
    counts = [stream.cached_tokens for stream in together]
    return Report(
        ttft_cold_ms=ttft_cold,
        ttft_cached_ms=ttft_cached,
        ttft_together_ms=ttft_together,
        cached_ratio=(ttft_cached.p50 or 0) / (ttft_cold.p50 or 1),
        together_ratio=(ttft_together.p95 or 0) / (ttft_cold.p50 or 1),
        prompt_tokens=sum(stream.prompt_tokens or 0 for stream in together),
        cached_tokens=None if None in counts else sum(count or 0 for count in counts),
    )


def _first_token(stream: Stream) -> float:
    first = stream.chunk_times[0] if stream.chunk_times else stream.ended
    return first - stream.started


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 2 if a request failed."""
    options = _parser().parse_args(arguments)
    api_key = os.environ.get("OPENAI_API_KEY")
    plan = Plan(options.users, options.common_tokens, options.own_tokens)
    try:
        scenario = Scenario(
            model=first_model(options.url, api_key),
            max_tokens=options.max_tokens,
            seed=options.seed,
        )
        target = Target.parse(options.url, scenario.path, api_key)
        report = asyncio.run(measure(target, scenario, plan))
    except (ValueError, StreamError) as error:
        print(f"loadtests: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"plan": asdict(plan), "report": asdict(report)}, indent=2))
        return 0
    for name, times in (
        ("TTFT cold", report.ttft_cold_ms),
        ("TTFT one after another", report.ttft_cached_ms),
        (f"TTFT of {plan.users} at once", report.ttft_together_ms),
    ):
        p50, p95, p99 = times.cells()
        print(f"{name:28} p50 {p50:>8}  p95 {p95:>8}  p99 {p99:>8} ms")
    print(f"median one after another / cold: {report.cached_ratio:.3f}")
    print(f"p95 at once / cold:              {report.together_ratio:.2f}")
    cached = "unknown" if report.cached_tokens is None else report.cached_tokens
    print(f"prompt tokens at once: {report.prompt_tokens}, of which cached: {cached}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.prefix",
        description="Many users behind one long beginning: what the prefix cache saves them.",
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="base URL [%(default)s]")
    parser.add_argument("--users", type=int, default=16, metavar="N", help="[%(default)s]")
    parser.add_argument(
        "--common-tokens", type=int, default=1500, metavar="N", help="[%(default)s]"
    )
    parser.add_argument(
        "--own-tokens", type=int, default=32, metavar="N", help="of each user [%(default)s]"
    )
    parser.add_argument("--max-tokens", type=int, default=8, metavar="N", help="[%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main())
