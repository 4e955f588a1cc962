"""What the commands of this folder have in common: options, running a plan, and its table."""

import argparse
import asyncio
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from loadtests.http_stream import StreamError, Target
from loadtests.report import Times
from loadtests.scenario import Scenario

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Plan = TypeVar("Plan", bound="DataclassInstance")
Report = TypeVar("Report", bound="DataclassInstance")


def base_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """A parser with the options that every command has."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="base URL [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def positive(text: str) -> int:
    """The type of an option that is a whole number from 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: accepted: a whole number from 1")
    return value


def positives(text: str) -> list[int]:
    """The type of an option that is whole numbers from 1, commas between."""
    counts = [int(part) for part in text.split(",")]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: accepted: whole numbers from 1, by commas")
    return counts


def first_model(url: str, api_key: str | None) -> str:
    """The name of the first model that a server lists."""
    target = Target.parse(url, "models", api_key)
    address = target.url(target.path)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (urllib.error.URLError, OSError, LookupError, ValueError) as error:
        raise ValueError(f"{address}: {error}; name the model with --model") from None


def run_plan(
    measure: Callable[[Target, Scenario, Plan], Awaitable[Report]],
    plan: Plan,
    options: argparse.Namespace,
) -> Report | None:
    """What a plan gave with the first model of a server; None, and a line that says why, if not.

    With ``--json`` it is printed too.
    """

    async def measured(target: Target, scenario: Scenario) -> Report:
        return await measure(target, scenario, plan)

    api_key = os.environ.get("OPENAI_API_KEY")
    try:
        model = first_model(options.url, api_key)
        scenario = Scenario(model=model, seed=options.seed)
        target = Target.parse(options.url, scenario.path, api_key)
        report = asyncio.run(measured(target, scenario))
    except (ValueError, StreamError) as error:
        print(f"loadtests: {error}", file=sys.stderr)
        return None
    if options.json:
        print(json.dumps({"plan": asdict(plan), "report": asdict(report)}, indent=2))
    return report


def print_times(rows: dict[str, Times]) -> None:
    """A line of percentiles for each name."""
    for name, times in rows.items():
        p50, p95, p99 = times.cells()
        print(f"{name:28} p50 {p50:>8}  p95 {p95:>8}  p99 {p99:>8} ms")
