"""``lanewise bench --profile``: what the time of a test goes to, by operation and kernel."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lanewise.runtime import Limits, OperationTime, Session


@dataclass(slots=True)
class Profile:
    """One run of a test: its wall time and what the library measured of it."""

    threads: int
    seconds: float = 0.0
    steps: int = 0
    operations: list[OperationTime] = field(default_factory=list)

    @contextmanager
    def measure(self, session: Session) -> Iterator[None]:
        """Profile what runs inside the block."""
        steps = session.counters().steps
        session.start_profile()
        start = perf_counter()
        yield
        self.seconds = perf_counter() - start
        self.operations = session.stop_profile()
        self.steps = session.counters().steps - steps


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report; milliseconds are wall time of one step.

    ``wait_ms`` is what the threads lost on average at the barrier after the operation, and
    ``share`` the operation's part of the whole test, waiting included. The rates are of working
    time; ``share_of_limit`` is the larger of both against the machine's limits. The arithmetic of
    operations without a kernel is in f32, for which no limit is measured.
    """

    operation: str
    kernel: str
    ms: float
    wait_ms: float
    share: float
    gb_s: float
    gmac_s: float
    share_of_limit: float


MIN_WIDTH = 108  # columns, also where the output is no terminal: symbols of kernels are long
OUTSIDE = "outside"  # the name of the row for what passed outside the library


def report_rows(profile: Profile, limits: Limits) -> list[Row]:
    """The lines of a report: every operation, then the time outside the library."""
    rows = []
    inside = 0.0
    for measured in profile.operations:
        work = measured.work_seconds / profile.threads
        wait = measured.wait_seconds / profile.threads
        inside += work + wait
        gb_s = measured.bytes / work / 1e9
        gmac_s = measured.macs / work / 1e9
        compute = gmac_s / limits.int8_gmac_s if "_q8" in measured.kernel else 0.0
        rows.append(
            Row(
                operation=measured.operation,
                kernel=measured.kernel,
                ms=1e3 * work / profile.steps,
                wait_ms=1e3 * wait / profile.steps,
                share=(work + wait) / profile.seconds,
                gb_s=gb_s,
                gmac_s=gmac_s,
                share_of_limit=max(gb_s / limits.read_gb_s, compute),
            )
        )
    outside = max(profile.seconds - inside, 0.0)
    share = outside / profile.seconds
    rows.append(Row(OUTSIDE, "", 1e3 * outside / profile.steps, 0.0, share, 0.0, 0.0, 0.0))
    return rows


def print_rows(test: str, rows: list[Row]) -> None:
    """A table for one test."""
    console = Console(highlight=False)
    console.width = max(console.width, MIN_WIDTH)
    numbers = ("ms/step", "waiting", "share", "GB/s", "GMAC/s", "of limit")
    table = Table("operation", "kernel", *numbers, box=SIMPLE_HEAD)
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        table.add_row(
            row.operation,
            row.kernel,
            f"{row.ms:.3f}",
            f"{row.wait_ms:.3f}",
            f"{row.share:.1%}",
            f"{row.gb_s:.1f}" if row.gb_s else "",
            f"{row.gmac_s:.1f}" if row.gmac_s else "",
            f"{row.share_of_limit:.0%}" if row.share_of_limit else "",
        )
    console.print(f"\n{test}, profiled")
    console.print(table)
