"""What a panel shows; ``grafana.py`` makes it one of Grafana's."""

from collections.abc import Sequence
from dataclasses import dataclass

MODEL = 'model_name=~"$model", instance=~"$instance"'
SERVER = 'job=~"$job", instance=~"$instance"'
WINDOW = "[$__rate_interval]"
PROBES = 'handler!~"(/v1)?/health.*|/ping|/metrics"'
QUANTILES = (0.5, 0.95, 0.99)
# The objectives of deploy/prometheus/alerts.yml.
FIRST_TOKEN_S, TOKEN_S = 10.0, 0.5


@dataclass(frozen=True)
class Target:
    """One query of a panel."""

    expr: str
    legend: str = ""
    kind: str = "lines"  # lines | heatmap | table
    exemplars: bool = False


@dataclass(frozen=True)
class Panel:
    """A panel, or with ``kind`` row the title of those that follow."""

    kind: str
    title: str
    text: str = ""
    targets: tuple[Target, ...] = ()
    unit: str | None = None
    limits: tuple[float, ...] = ()  # where green becomes orange, and orange red; falling: red first
    most: float | None = None
    stacked: bool = False
    width: int = 8


def row(title: str) -> Panel:
    return Panel("row", title)


def stat(title: str, text: str, expr: str, unit: str | None = None, *limits: float) -> Panel:
    return Panel("stat", title, text, (Target(expr),), unit, limits, width=4)


def lines(
    title: str,
    text: str,
    targets: Sequence[tuple[str, str]],
    unit: str | None = None,
    *limits: float,
    most: float | None = None,
    stacked: bool = False,
) -> Panel:
    made = tuple(Target(expr, legend) for expr, legend in targets)
    return Panel("timeseries", title, text, made, unit, limits, most, stacked)


def per_second(title: str, text: str, metric: str, by: str) -> Panel:
    """The parts of a rate by one label, upon each other."""
    return lines(title, text, [(rate(metric, by=by), f"{{{{{by}}}}}")], "reqps", stacked=True)


def rate(metric: str, labels: str = MODEL, by: str = "") -> str:
    return f"sum{f' by ({by}) ' if by else ''}(rate({metric}{{{labels}}}{WINDOW}))"


def quantiles(
    title: str, text: str, histogram: str, unit: str | None = "s", *limits: float
) -> Panel:
    targets = tuple(
        Target(
            f"histogram_quantile({q}, {rate(f'{histogram}_bucket', by='le')})",
            f"p{100 * q:g}",
            exemplars=True,
        )
        for q in QUANTILES
    )
    return Panel("timeseries", title, text, targets, unit, limits)


def lengths(title: str, text: str, histogram: str) -> Panel:
    """Mean and quantiles of lengths. Buckets are vLLM's, 1, 2, 5, 10 …: only the mean is exact."""
    mean = Target(f"{rate(f'{histogram}_sum')} / {rate(f'{histogram}_count')}", "mean")
    coarse = quantiles(title, "", histogram, None)
    about = f"{text}. The mean is exact; percentiles are as coarse as the buckets (1, 2, 5, 10 …)."
    return Panel("timeseries", title, about, (mean, *coarse.targets), None, ())


def heatmap(title: str, text: str, histogram: str, unit: str | None = "s") -> Panel:
    target = Target(rate(f"{histogram}_bucket", by="le"), "{{le}}", "heatmap")
    return Panel("heatmap", title, text, (target,), unit)


def within(histogram: str, bound: float) -> str:
    """The share of a histogram's values up to one of its bounds."""
    good = rate(f"{histogram}_bucket", f'le="{bound}", {MODEL}')
    return f"{good} / {rate(f'{histogram}_count')}"


def answers(labels: str, by: str = "") -> str:
    return rate("http_requests_total", f"{labels}, {PROBES}, {SERVER}", by)
