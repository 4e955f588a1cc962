"""What the runs come to: a line for each kind, and the bars that were missed."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table

from loadtests.hostile.run import COMPILES, LONG_WORK, TENANTS, UNDISTURBED, Life
from loadtests.report import percentile

STEPS_WAITED = 3
MIN_POLLS = 400  # of fewer the 99th percentile is only the worst
MAX_SHOWN = 6  # problems of one kind
# A line of the log that begins as none of ours does, or an escape that a terminal would obey.
FORGED = re.compile(r"^INFO forged|\x1b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Bars:
    """What is allowed. ``slack`` multiplies every time, for machines that do something else too."""

    memory_limit: int  # bytes
    slack: float = 1.0
    live_p99_ms: float = 100.0
    live_worst_ms: float = 250.0
    memory_share: float = 0.05
    gap_ratio: float = 3.0
    compile_ms: float = 1_000.0
    most_z: float = 3.29  # of a thousand servers that tell nothing one is accused


@dataclass(slots=True)
class Row:
    """One kind over all its visits."""

    kind: str
    outcomes: Counter[str] = field(default_factory=Counter)
    live_p99_ms: float = 0.0
    live_worst_ms: float = 0.0
    gap_p99_ms: float | None = None
    memory_peak: int = 0  # bytes
    problems: list[str] = field(default_factory=list)


def rows_of(life: Life, bars: Bars) -> list[Row]:
    """A row for each kind that one server has seen."""
    rows: dict[str, Row] = {}
    gaps: dict[str, list[float]] = {}
    for visit in life.visits:
        row = rows.setdefault(visit.kind, Row(visit.kind))
        span = (visit.began, visit.ended)
        row.outcomes.update(visit.record.outcomes)
        if len(life.sight.live_ms(*span)) >= MIN_POLLS:
            row.live_p99_ms = max(row.live_p99_ms, life.sight.live_p99_ms(*span))
        row.live_worst_ms = max(row.live_worst_ms, life.sight.live_worst_ms(*span))
        row.memory_peak = max(row.memory_peak, life.sight.memory_peak(*span))
        gaps.setdefault(visit.kind, []).extend(life.crowd.gaps_ms(*span))
        row.problems += visit.record.problems + _counted(life.crowd.wrong(*span))
        row.problems += _counted(life.sight.failures_in(*span))
    for kind, row in rows.items():
        row.gap_p99_ms = percentile(sorted(gaps[kind]), 99)
        if not _lives(row.live_p99_ms, row.live_worst_ms, bars):
            p99, worst = row.live_p99_ms, row.live_worst_ms
            row.problems.append(f"/health/live took {p99:.0f} ms at p99, {worst:.0f} at worst")
    if life.died_of is not None:
        rows[life.died_of].problems.insert(0, "the process ended")
    if LONG_WORK in rows:
        rows[LONG_WORK].problems += waits(life, bars)[1]
    if COMPILES in rows and (probe := life.probe("64 slow grammars")) is not None:
        own = f"schemas of others beside slow grammars: {probe.worst_ms():.0f} ms at worst"
        rows[COMPILES].problems += [own] if probe.worst_ms() > bars.compile_ms * bars.slack else []
    if TENANTS in rows and life.telling is not None:
        rows[TENANTS].problems += life.telling.problems(bars.most_z * bars.slack)
        rows[TENANTS].outcomes["probes"] += len(life.telling.used_s)
    return list(rows.values())


def _lives(p99_ms: float, worst_ms: float, bars: Bars) -> bool:
    return p99_ms < bars.live_p99_ms * bars.slack and worst_ms < bars.live_worst_ms * bars.slack


def _counted(problems: Iterable[str]) -> list[str]:
    return [f"{text} ({n} times)" if n > 1 else text for text, n in Counter(problems).items()]


def waits(life: Life, bars: Bars) -> tuple[list[str], list[str]]:
    """What short requests waited beside long work, and where that is too long.

    A step is what a server makes of an ordinary long prompt beside the same streams: the median
    time between two of their tokens meanwhile.
    """
    alone, ordinary = life.probe("alone"), life.probe("an ordinary long prompt")
    if alone is None or ordinary is None:
        return [], []
    plain = percentile(_undisturbed_gaps(life), 50) or 0.0
    step = percentile(life.crowd.gaps_ms(ordinary.began, ordinary.ended), 50) or plain
    bar = STEPS_WAITED * step + alone.median_ms()
    lines = [
        f"a step of streams alone {plain:.0f} ms, beside an ordinary prompt {step:.0f} ms; a short "
        f"request alone {alone.median_ms():.0f} ms: bar {bar:.0f} ms"
    ]
    missed = []
    for probe in life.probes[life.probes.index(ordinary) + 1 :]:
        if probe.what == "64 slow grammars":
            continue
        steps = (probe.p90_ms() - alone.median_ms()) / step if step else 0.0
        line = (
            f"a short request beside {probe.what}: median {probe.median_ms():.0f}, p90 "
            f"{probe.p90_ms():.0f}, worst {probe.worst_ms():.0f} ms ({steps:.1f} steps + its own)"
        )
        lines.append(line)
        # One of them may have met something else on a busy machine, but not wait for a request.
        late = probe.p90_ms() > bar * bars.slack or probe.worst_ms() > 2 * bar * bars.slack
        missed += [line] if late else []
    return lines, missed


def _undisturbed_gaps(life: Life) -> list[float]:
    visit = next(visit for visit in life.visits if visit.kind == UNDISTURBED)
    return life.crowd.gaps_ms(visit.began, visit.ended)


def overall(life: Life, bars: Bars) -> tuple[list[str], list[str]]:
    """Lines about one server's whole life, and the bars that it missed."""
    lines, missed = [], []
    begin = min((visit.began for visit in life.visits), default=0.0)
    end = max((visit.ended for visit in life.visits), default=0.0)

    def bar(line: str, held: bool) -> None:
        lines.append(line)
        missed.extend([] if held else [line])

    if life.crowd.answered:
        wrong = life.crowd.wrong(begin, end)
        bar(f"{len(wrong)} of {len(life.crowd.answered)} honest answers were wrong", not wrong)
        calm = percentile(_undisturbed_gaps(life), 99)
        ratio = (life.crowd.gap_p99_ms(begin, end) or 0.0) / calm if calm else 0.0
        bar(
            f"between two honest tokens, p99: {ratio:.2f} times the {calm or 0:.0f} ms undisturbed",
            ratio <= bars.gap_ratio * bars.slack,
        )
    p99, worst = life.sight.live_p99_ms(begin, end), life.sight.live_worst_ms(begin, end)
    polls = len(life.sight.live_ms(begin, end))
    bar(
        f"/health/live: p99 {p99:.0f} ms, worst {worst:.0f} ms of {polls} polls",
        _lives(p99, worst, bars),
    )
    peak = life.sight.memory_peak(begin, end)
    bar(
        f"most memory {peak / 2**20:.0f} MiB of {bars.memory_limit / 2**20:.0f}",
        peak <= bars.memory_limit,
    )
    if len(life.memory) > 1:
        growth = life.memory[-1] / life.memory[0] - 1
        first, last = (size / 2**20 for size in (life.memory[0], life.memory[-1]))
        line = f"memory after the first round {first:.0f} MiB, in the end {last:.0f}: {growth:+.1%}"
        bar(line, growth <= bars.memory_share)
    forged = FORGED.search(life.log)
    bar("the log has a forged line" if forged else "no forged line in the log", not forged)
    return lines, missed


def print_rows(rows: Sequence[Row]) -> None:
    """The table, and what was wrong under it."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("kind", "sent", "answers", "live p99", "worst ms", "ITL p99", "MiB", ""):
        table.add_column(name, justify="left" if name in ("kind", "answers", "") else "right")
    for row in rows:
        answers = ", ".join(f"{n} x {status}" for status, n in row.outcomes.most_common())
        gap = "-" if row.gap_p99_ms is None else f"{row.gap_p99_ms:.0f}"
        live = (f"{row.live_p99_ms:.0f}", f"{row.live_worst_ms:.0f}")
        memory = f"{row.memory_peak / 2**20:.0f}"
        verdict = "MISSED" if row.problems else "held"
        sent = str(sum(row.outcomes.values()))
        table.add_row(row.kind, sent, answers, *live, gap, memory, verdict)
    console = Console(width=140)
    console.print(table)
    for row in rows:
        for problem in row.problems[:MAX_SHOWN]:
            console.print(f"{row.kind}: {problem}", markup=False, highlight=False)
        if len(row.problems) > MAX_SHOWN:
            console.print(f"{row.kind}: {len(row.problems) - MAX_SHOWN} more")
