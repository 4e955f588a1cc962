"""``python -m loadtests.open_loop SCENARIO.toml --url ours=http://… --url theirs=http://…``."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from loadtests.command import first_model
from loadtests.http_stream import StreamError, Target
from loadtests.open_loop.measure import Point, measure_all, saturation_of
from loadtests.open_loop.page import HEADS, cells, write_page
from loadtests.open_loop.workload import ScenarioError, Workload, read_workload
from loadtests.scenario import Scenario


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write what is asked for; 1 if any request failed."""
    options = _parser().parse_args(arguments)
    try:
        workload = read_workload(options.scenario)
        servers = dict(_server(text, workload, options.model) for text in options.url)
        points = asyncio.run(measure_all(servers, workload, _say))
    except (ScenarioError, StreamError, ValueError) as error:
        print(f"loadtests: {error}", file=sys.stderr)
        return 2
    _print(points, workload)
    if options.report:
        write_page(options.report, workload, points)
    if options.json:
        facts = {"workload": asdict(workload), "points": [asdict(point) for point in points]}
        options.json.write_text(json.dumps(facts, indent=2, default=str) + "\n", encoding="utf-8")
    return 1 if any(point.errors for point in points) else 0


def _server(
    text: str, workload: Workload, model: str | None
) -> tuple[str, tuple[Target, Scenario]]:
    """A server's name, and how it is asked."""
    name, has_name, url = text.partition("=")
    if not has_name or "://" in name:
        name = url = text
    api_key = os.environ.get("OPENAI_API_KEY")
    scenario = Scenario(
        model=model or first_model(url, api_key), chat=workload.chat, timeout_s=workload.timeout_s
    )
    return name, (Target.parse(url, scenario.path, api_key), scenario)


def _say(point: Point) -> None:
    print(f"{point.server}: {point.rate:g}/s, {point.good.value:.0%} good", file=sys.stderr)


def _print(points: Sequence[Point], workload: Workload) -> None:
    console = Console(width=None if sys.stdout.isatty() else 240)
    table = Table(title=workload.name, caption="times in milliseconds", box=box.SIMPLE)
    for head in HEADS:
        table.add_column(head, justify="right")
    for point in points:
        table.add_row(*cells(point))
    console.print(table)
    for name, point in saturation_of(points).items():
        console.print(f"{name}: nine in ten requests are good up to {point.rate:g} per second")
    for point in points:
        for message, count in point.errors.items():
            console.print(f"{point.server}, {point.rate:g}/s, {count}: {message}", markup=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m loadtests.open_loop",
        description="Open-loop load against any OpenAI-compatible servers, in turns.",
    )
    parser.add_argument("scenario", type=Path, help="a TOML file, as in loadtests/scenarios")
    parser.add_argument(
        "--url", action="append", required=True, metavar="[NAME=]URL", help="a server; repeatable"
    )
    parser.add_argument("--model", help="model name [each server's first]")
    parser.add_argument("--report", type=Path, help="write an HTML page with plots")
    parser.add_argument("--json", type=Path, help="write all figures")
    return parser


if __name__ == "__main__":
    sys.exit(main())
