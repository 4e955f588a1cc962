"""Measure a running server: ``python -m loadtests --url http://127.0.0.1:8000 --clients 1,4,8``."""

import argparse
import asyncio
import dataclasses
import json
import os
import sys
from collections.abc import Sequence

from loadtests.command import base_parser, first_model, positive, positives
from loadtests.http_stream import StreamError, Target
from loadtests.report import Summary, print_table, summarize
from loadtests.scenario import Prompts, Scenario, measure
from loadtests.server_time import read_server_time


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenario at each number of clients; 1 if any request failed."""
    options = _parser().parse_args(arguments)
    api_key = options.api_key or os.environ.get("OPENAI_API_KEY")
    try:
        model = options.model or first_model(options.url, api_key)
        scenario = Scenario(
            model=model,
            prompt_tokens=options.prompt_tokens,
            max_tokens=options.max_tokens,
            rounds=options.rounds,
            chat=options.chat,
            ignore_eos=not options.respect_eos,
            timeout_s=options.timeout,
            seed=options.seed,
        )
        target = Target.parse(options.url, scenario.path, api_key)
        summaries = asyncio.run(_measure_all(target, scenario, options.clients))
    except (ValueError, StreamError) as error:
        print(f"loadtests: {error}", file=sys.stderr)
        return 2
    if options.json:
        facts = {"url": options.url, "scenario": dataclasses.asdict(scenario)}
        print(
            json.dumps(facts | {"runs": [dataclasses.asdict(run) for run in summaries]}, indent=2)
        )
    else:
        words = f"{scenario.prompt_tokens} tokens in, {scenario.max_tokens} out"
        print_table(summaries, f"{model} at {options.url}: {words}")
    return 1 if any(summary.errors for summary in summaries) else 0


async def _measure_all(target: Target, scenario: Scenario, clients: Sequence[int]) -> list[Summary]:
    prompts = Prompts(scenario.seed)
    await prompts.calibrate(target, scenario)
    summaries = []
    for count in clients:
        before = read_server_time(target)
        run = await measure(target, scenario, count, prompts)
        after = read_server_time(target)
        summaries.append(summarize(run, after.since(before) if before and after else None))
    return summaries


def _parser() -> argparse.ArgumentParser:
    parser = base_parser(
        "python -m loadtests",
        "Closed-loop streaming load against any OpenAI-compatible server: "
        "every prompt is new, one warm-up round is not counted.",
    )
    parser.add_argument("--model", help="model name [the server's first]")
    parser.add_argument("--api-key", help="key to send [$OPENAI_API_KEY]")
    parser.add_argument(
        "--clients",
        type=positives,
        default=[1, 4, 8],
        metavar="N,…",
        help="clients at once [1,4,8]",
    )
    parser.add_argument("--prompt-tokens", type=positive, default=128, help="[%(default)s]")
    parser.add_argument("--max-tokens", type=positive, default=64, help="[%(default)s]")
    parser.add_argument(
        "--rounds", type=positive, default=4, help="requests of each client [%(default)s]"
    )
    parser.add_argument("--chat", action="store_true", help="use /v1/chat/completions")
    parser.add_argument(
        "--respect-eos", action="store_true", help="do not send ignore_eos (an extension)"
    )
    parser.add_argument("--timeout", type=float, default=600.0, help="s per request [%(default)g]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
