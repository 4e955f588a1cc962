"""What this machine takes, from a bench of the model: the paper's formula, corrected at points."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lanewise.planning.machines import Kernels, Machine, Team
from lanewise.planning.steps import (
    StepCost,
    StepSize,
    StepTime,
    chunk_size,
    decode_size,
    interpolate,
    step_time,
)
from lanewise.planning.work import WHOLE, ModelWork, WindowShares

TEST = re.compile(r"(pp|tg)(\d+)(?:@(\d+))?")
# Of the integer-dot peak: what attention multiplies, by how prompts of 128 and of 512 tokens differ
# on a Zen 5, and how many values are normalized, rotated, activated or quantized.
ATTENTION_SHARE, VALUES_SHARE = 0.4, 0.02


@dataclass(frozen=True, slots=True)
class Point:
    """A step that was measured."""

    size: StepSize
    seconds: float


def calibrated(machine: Machine, work: ModelWork, points: Iterable[Point]) -> StepCost:
    """The cost of steps by the formula, corrected.

    At each number of rows that was measured, decode steps before prompts where both have it, it
    takes what was measured; between two, the factor by which the formula is off is interpolated.
    """
    factors = {
        point.size.rows: point.seconds / step_time(machine, work, point.size).seconds
        for point in sorted(points, key=lambda point: point.size.rows)
    }
    rows, values = tuple(factors), tuple(factors.values())

    def cost(size: StepSize) -> StepTime:
        return step_time(machine, work, size).times(interpolate(rows, values, size.rows))

    return cost


def host_machine(
    name: str, isa: str, threads: int, read_gb_s: float, int8_gmac_s: float
) -> Machine:
    """A machine of which a bench has measured the limits, with no more known of its kernels."""
    each = 1e9 * int8_gmac_s / threads
    kernels = Kernels(
        rows=(1.0,),
        macs_s=(each,),
        types={"others": (1.0, 1.0)},
        attention_s=ATTENTION_SHARE * each,
        values_s=VALUES_SHARE * each,
    )
    return Machine(name, isa, threads, 1e9 * read_gb_s, kernels, Team(0.0, 0, 0.0))


def machine_of_report(report: Mapping[str, Any]) -> Machine:
    """The machine that a report of ``lanewise bench --json`` was made on."""
    limits = report["limits"]
    return host_machine(
        report["cpu"], report["isa"], report["threads"], limits["read_gb_s"], limits["int8_gmac_s"]
    )


def points_of(report: Mapping[str, Any], windows: WindowShares = WHOLE) -> list[Point]:
    """The steps that a report of ``lanewise bench --json`` has measured."""
    points = []
    for result in report["results"]:
        found = TEST.fullmatch(result["name"])
        if found is None:
            continue
        tokens, sequences = int(found[2]), int(found[3] or 1)
        seconds = 1 / result["tokens_per_second"]
        if found[1] == "pp":
            size = chunk_size(tokens, windows)
        else:
            size = decode_size(sequences, report["context"] + tokens // 2, windows)
        points.append(Point(size, size.rows * seconds))
    return points
