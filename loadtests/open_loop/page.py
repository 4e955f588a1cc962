"""An HTML page that needs nothing else: the figures, and plots of them over the rate."""

import html
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtests.open_loop.measure import Interval, Point, saturation_of
from loadtests.open_loop.workload import Workload

PLOTS: tuple[tuple[str, str, Callable[[Point], Interval], float], ...] = (
    ("good requests, share", "good", lambda point: point.good, 1.0),
    ("first token, p95, ms", "ttft", lambda point: point.ttft_p95, 0.0),
    ("time per output token, p95, ms", "tpot", lambda point: point.tpot_p95, 0.0),
)
STYLE = (
    "body{font:15px system-ui;margin:2em auto;max-width:70em;padding:0 1em}table{border-collapse:"
    "collapse}td,th{padding:.25em .7em;text-align:right;border-bottom:1px solid #ccc}"
    "td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}"
)
HEADS = (
    *("server", "requests/s", "offered", "errors", "good", "goodput/s", "TTFT p50", "TTFT p95"),
    *("TPOT p50", "TPOT p95", "ITL p99", "e2e p95", "tokens/s", "late"),
)


def shown(one: Interval, digits: int = 0) -> str:
    """A figure and its interval."""
    return f"{one.value:.{digits}f} ({one.low:.{digits}f} to {one.high:.{digits}f})"


def cells(point: Point) -> list[str]:
    """A row of the table; times in milliseconds."""
    return [
        *(point.server, f"{point.rate:g}", str(point.offered), str(sum(point.errors.values()))),
        *(shown(point.good, 2), f"{point.goodput:.2f}"),
        *(shown(point.ttft_p50), shown(point.ttft_p95)),
        *(shown(point.tpot_p50, 1), shown(point.tpot_p95, 1)),
        *(f"{point.itl_p99:.0f}", f"{point.e2e_p95:.0f}"),
        *(f"{point.tokens_per_s:.1f}", f"{point.late_ms:.0f}"),
    ]


def write_page(path: Path, workload: Workload, points: Sequence[Point]) -> None:
    """Write the report."""
    limits = workload.objectives
    words = (
        f"{workload.arrivals} arrivals, {workload.rounds} rounds of {workload.seconds:g} s at each"
        f" rate, servers in turns; prompts of {_span(workload.prompt_tokens)} and answers of"
        f" {_span(workload.output_tokens)} tokens. A good request has its first token within"
        f" {limits.ttft_ms:g} ms and one each {limits.tpot_ms:g} ms after it; times count from when"
        " a request is due. In parentheses: 95 % of resampled requests."
    )
    rows = "".join(_row("td", cells(point)) for point in points)
    ends = "".join(
        f"<li>{html.escape(name)}: {point.rate:g} requests/s,"
        f" {point.tokens_per_s:.1f} tokens/s</li>"
        for name, point in saturation_of(points).items()
    )
    body = (
        f"<h1>{html.escape(workload.name)}</h1><p>{html.escape(words)}</p>"
        f"<h2>Nine in ten requests are good up to</h2><ul>{ends or '<li>no rate</li>'}</ul>"
        f"{_plots(points)}<h2>All rates</h2>"
        f"<div style='overflow-x:auto'><table>{_row('th', HEADS)}{rows}</table></div>"
    )
    path.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{html.escape(workload.name)}</title><style>{STYLE}</style>{body}</html>\n",
        encoding="utf-8",
    )


def _span(limits: tuple[int, int]) -> str:
    low, high = limits
    return str(low) if low == high else f"{low} to {high}"


def _row(tag: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"


def _plots(points: Sequence[Point]) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    for axes, (label, _, read, top) in zip(figure.subplots(1, len(PLOTS)), PLOTS, strict=True):
        _draw(axes, label, read, points)
        if top:
            axes.set_ylim(0, 1.05 * top)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    text = buffer.getvalue()
    return "\n".join(line.strip() for line in text[text.index("<svg") :].splitlines())


def _draw(
    axes: Any, label: str, read: Callable[[Point], Interval], points: Sequence[Point]
) -> None:
    for server in sorted({point.server for point in points}):
        here = [point for point in points if point.server == server]
        rates, found = [point.rate for point in here], [read(point) for point in here]
        values = [one.value for one in found]
        axes.plot(rates, values, marker="o", label=server)
        axes.fill_between(rates, [one.low for one in found], [one.high for one in found], alpha=0.2)
    axes.set_xlabel("requests per second")
    axes.set_title(label)
    axes.set_ylim(bottom=0)
    axes.legend()
