"""Many users behind one long beginning: ``python -m loadtests.prefix --url http://127.0.0.1:8000``.

Measured after another: the common beginning and one user's own words where nothing of them is
cached, then users one after another behind a cached beginning, then all users at once behind
another beginning, of which nothing is cached when they come.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.command import base_parser, positive, print_times, run_plan
from loadtests.http_stream import Stream, Target, post_stream
from loadtests.report import Times
from loadtests.scenario import Prompts, Scenario

COLD = 3  # requests whose median counts as cold


@dataclass(frozen=True, slots=True)
class Plan:
    """How many users, and tokens of what they send."""

    users: int
    common_tokens: int
    own_tokens: int
    max_tokens: int


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

    async def ask(beginning: str) -> Stream:
        prompt = f"{beginning} {prompts.next(plan.own_tokens)}"
        body = scenario.body(prompt) | {"max_tokens": plan.max_tokens}
        return await post_stream(target, body, scenario.timeout_s)

    cold = []
    for _ in range(COLD):
        known = prompts.next(plan.common_tokens)
        cold.append(await ask(known))
    cached = [await ask(known) for _ in range(plan.users)]
    new = prompts.next(plan.common_tokens)
    together = await asyncio.gather(*(ask(new) for _ in range(plan.users)))
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
    plan = Plan(
        users=options.users,
        common_tokens=options.common_tokens,
        own_tokens=options.own_tokens,
        max_tokens=options.max_tokens,
    )
    report = run_plan(measure, plan, options)
    if report is None:
        return 2
    if options.json:
        return 0
    print_times(
        {
            "TTFT cold": report.ttft_cold_ms,
            "TTFT one after another": report.ttft_cached_ms,
            f"TTFT of {plan.users} at once": report.ttft_together_ms,
        }
    )
    print(f"median one after another / cold: {report.cached_ratio:.3f}")
    print(f"p95 at once / cold:              {report.together_ratio:.2f}")
    cached = "unknown" if report.cached_tokens is None else report.cached_tokens
    print(f"prompt tokens at once: {report.prompt_tokens}, of which cached: {cached}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = base_parser(
        "python -m loadtests.prefix",
        "Many users behind one long beginning: what the prefix cache saves them.",
    )
    for name, default, what in (
        ("--users", 16, ""),
        ("--common-tokens", 1500, ""),
        ("--own-tokens", 32, "of each user "),
        ("--max-tokens", 8, ""),
    ):
        parser.add_argument(
            name, type=positive, default=default, metavar="N", help=f"{what}[%(default)s]"
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
