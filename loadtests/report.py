"""Percentiles of what a run measured, and a table of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from loadtests.scenario import Run
from loadtests.server_time import ServerTime


@dataclass(frozen=True, slots=True)
class Times:
    """Percentiles and mean of durations in milliseconds; None where nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Times":
        """From durations in seconds."""
        values = sorted(1000 * second for second in seconds)
        mean = sum(values) / len(values) if values else None
        p50, p95, p99 = (percentile(values, percent) for percent in (50, 95, 99))
        return cls(p50, p95, p99, mean)

    def cells(self) -> tuple[str, ...]:
        """The percentiles as a table shows them."""
        shown = (self.p50, self.p95, self.p99)
        return tuple("-" if value is None else f"{value:.1f}" for value in shown)


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run."""

    clients: int
    requests: int
    errors: int
    error_messages: dict[str, int]
    duration_s: float
    prompt_tokens_mean: float | None
    completion_tokens: int
    tokens_per_second: float
    requests_per_second: float
    ttft_ms: Times
    itl_ms: Times
    tpot_ms: Times
    e2e_ms: Times
    client_cpu_share: float
    # Of Lanewise servers only, the warm-up round included.
    server_outside_share: float | None = None
    server_outside_us_per_step: float | None = None


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """The value that ``percent`` of ascending values do not exceed, interpolated."""
    if not ordered:
        return None
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarize(run: Run, server: ServerTime | None = None) -> Summary:
    """What one run comes to, for client and, where known, server."""
    streams = [stream for stream in run.streams if stream.chunk_times]
    counts = [s.prompt_tokens for s in streams if s.prompt_tokens is not None]
    tokens = sum(stream.tokens for stream in streams)
    return Summary(
        clients=run.clients,
        requests=len(run.streams),
        errors=sum(run.errors.values()),
        error_messages=dict(run.errors.most_common(5)),
        duration_s=run.duration_s,
        prompt_tokens_mean=sum(counts) / len(counts) if counts else None,
        completion_tokens=tokens,
        tokens_per_second=tokens / run.duration_s,
        requests_per_second=len(run.streams) / run.duration_s,
        ttft_ms=Times.of(stream.chunk_times[0] - stream.started for stream in streams),
        itl_ms=Times.of(gap for stream in streams for _, gap in stream.gaps_s),
        tpot_ms=Times.of(tpot for stream in streams if (tpot := stream.tpot_s) is not None),
        e2e_ms=Times.of(stream.ended - stream.started for stream in streams),
        client_cpu_share=run.cpu_s / run.duration_s,
        server_outside_share=server.outside_share if server else None,
        server_outside_us_per_step=server.outside_us_per_step if server else None,
    )


def print_table(summaries: Sequence[Summary], title: str) -> None:
    """Three rows per number of clients, then what went wrong."""
    table = Table(title=title, caption="times in milliseconds", box=box.SIMPLE, pad_edge=False)
    heads = ["clients", "requests", "errors", "tokens/s", "own CPU", "", "p50", "p95", "p99"]
    for head in heads:
        table.add_column(head, justify="left" if head == "" else "right")
    for summary in summaries:
        counts = map(str, (summary.clients, summary.requests, summary.errors))
        rates = (f"{summary.tokens_per_second:.1f}", f"{summary.client_cpu_share:.1%}")
        blank = ("",) * 5
        table.add_row(*counts, *rates, "TTFT", *summary.ttft_ms.cells())
        table.add_row(*blank, "ITL", *summary.itl_ms.cells())
        table.add_row(*blank, "TPOT", *summary.tpot_ms.cells())
        table.add_row(*blank, "e2e", *summary.e2e_ms.cells(), end_section=True)
    console = Console()
    console.print(table)
    for summary in summaries:
        share, micros = summary.server_outside_share, summary.server_outside_us_per_step
        if share is not None and micros is not None:
            console.print(
                f"{summary.clients} clients: the server spent {share:.1%} of its time outside "
                f"native code, {micros:.0f} us a step"
            )
    for summary in summaries:
        for message, count in summary.error_messages.items():
            console.print(f"{summary.clients} clients, {count} times: {message}", markup=False)
