"""Long prompts beside steady decoders: ``python -m loadtests.mixed --url http://127.0.0.1:8000``.

Measured after another: long prompts alone, decoders alone, both together, and decoders alone again,
as what they attend to has grown by then. What counts is how much longer each waits beside the
other: a decoder for its next token, a prompt for its first.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtests.command import base_parser, print_times, run_plan
from loadtests.decoders import Decoders, run_beside
from loadtests.http_stream import Target, post_stream
from loadtests.report import Times
from loadtests.scenario import Prompts, Scenario


@dataclass(frozen=True, slots=True)
class Plan:
    """How many of each, and for how long."""

    decoders: int
    prompt_tokens: int
    prompts: int
    every_s: float
    calm_s: float
    decoder_max_tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    """Times in milliseconds; ratios compare both together with each alone."""

    itl_calm_ms: Times
    itl_mixed_ms: Times
    ttft_alone_ms: Times
    ttft_mixed_ms: Times
    itl_p99_ratio: float
    ttft_worst_ratio: float


async def measure(target: Target, scenario: Scenario, plan: Plan) -> Report:
    """Run the phases; StreamError if a request fails."""
    prompts = Prompts(scenario.seed)
    await prompts.calibrate(target, scenario)

    async def long_prompt() -> float:
        body = scenario.body(prompts.next(plan.prompt_tokens)) | {"max_tokens": 1}
        stream = await post_stream(target, body, scenario.timeout_s)
        return stream.chunk_times[0] - stream.started

    async def long_prompts() -> list[float]:
        waiting = []
        for _ in range(plan.prompts):
            waiting.append(asyncio.create_task(long_prompt()))
            await asyncio.sleep(plan.every_s)
        return await asyncio.gather(*waiting)

    alone = [await long_prompt() for _ in range(2)]
    longest = replace(scenario, max_tokens=plan.decoder_max_tokens)
    async with Decoders(target, longest, plan.decoders, prompts) as decoders:
        beside, itl = await run_beside(decoders, plan.calm_s, long_prompts)
    return Report(
        itl_calm_ms=itl.calm,
        itl_mixed_ms=itl.beside,
        ttft_alone_ms=Times.of(alone),
        ttft_mixed_ms=Times.of(beside),
        itl_p99_ratio=itl.p99_ratio,
        ttft_worst_ratio=max(beside) / (sum(alone) / len(alone)),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 2 if a request failed."""
    options = _parser().parse_args(arguments)
    plan = Plan(
        decoders=options.decoders,
        prompt_tokens=options.prompt_tokens,
        prompts=options.prompts,
        every_s=options.every,
        calm_s=options.calm,
        decoder_max_tokens=options.decoder_max_tokens,
    )
    report = run_plan(measure, plan, options)
    if report is None:
        return 2
    if options.json:
        return 0
    print_times(
        {
            "ITL of decoders alone": report.itl_calm_ms,
            "ITL beside long prompts": report.itl_mixed_ms,
            "TTFT of long prompts alone": report.ttft_alone_ms,
            "TTFT beside decoders": report.ttft_mixed_ms,
        }
    )
    print(f"ITL p99 beside prompts / median alone: {report.itl_p99_ratio:.2f}")
    print(f"worst TTFT beside decoders / alone:    {report.ttft_worst_ratio:.2f}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = base_parser(
        "python -m loadtests.mixed",
        "Long prompts beside steady decoders: what each costs the other.",
    )
    parser.add_argument("--decoders", type=int, default=8, metavar="N", help="[%(default)s]")
    parser.add_argument(
        "--prompt-tokens", type=int, default=2000, metavar="N", help="[%(default)s]"
    )
    parser.add_argument("--prompts", type=int, default=5, metavar="N", help="[%(default)s]")
    parser.add_argument(
        "--every", type=float, default=10.0, metavar="S", help="between prompts [%(default)s]"
    )
    parser.add_argument(
        "--calm", type=float, default=10.0, metavar="S", help="decoders alone [%(default)s]"
    )
    parser.add_argument(
        "--decoder-max-tokens",
        type=int,
        default=4000,
        metavar="N",
        help="of each decoder, then another begins [%(default)s]",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
