"""Costs of operations over lanes that are no matrix products: attention, norms, quantization.

Instructions are counted for each size. A call's cost is linear in its size, except for the merging
of splits, 20 vectors each. Cycles are extrapolated from two calls that are quick to model.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import model

GROUP, HEAD_DIM = 4, 64
CONTEXTS, VALUES = (128, 2048, 8192), (2048,)
SIZES = {
    "attention_f16": CONTEXTS,
    "attention_int8": CONTEXTS,
    "rmsnorm": VALUES,
    "quantize": VALUES,
}
MODELLED = (256, 512)
# Each level's operations on the cores that use them; I8MM and SVE use DotProd's operations.
LEVELS = {"neon": ("N1",), "dotprod": tuple(core.name for core in model.CORES)}


@dataclass
class OperationResult:
    """One operation at one level over ``size`` tokens of context or values."""

    level: str
    operation: str
    size: int
    instructions: int
    cycles: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Caller:
    """Runs operations under emulation."""

    program: Path
    plugin: Path
    cpu: str
    code: model.Code

    def __call__(
        self, operation: str, level: str, size: int, follow: Sequence[range] = ()
    ) -> model.Counts:
        """What one call executes, checked against the bits of scalar."""
        what = (operation, level, size, GROUP, HEAD_DIM)
        return model.run(self.plugin, self.cpu, self.program, *what, follow=follow)[1]


def bench(program: Path, plugin: Path, cpu: str, names: Sequence[str]) -> list[OperationResult]:
    """Count and model operations of every level."""
    caller = Caller(program, plugin, cpu, model.Code(program))
    calls = [(name, level) for name in names for level in LEVELS]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(chain.from_iterable(pool.map(lambda call: _bench(caller, *call), calls)))


def _bench(caller: Caller, operation: str, level: str) -> list[OperationResult]:
    places = caller.code.files[f"lane_ops__{level}.c"]
    results = [
        OperationResult(level, operation, size, caller(operation, level, size).within(places))
        for size in SIZES[operation]
    ]
    few, more = MODELLED
    executed = [caller.code.executed(caller(operation, level, size, places)) for size in MODELLED]
    for core in model.CORES:
        if core.name in LEVELS[level]:
            at_few, at_more = (model.cycles(core, instructions) for instructions in executed)
            for result in results:
                each = (at_more - at_few) / (more - few)
                result.cycles[core.name] = round(at_few + each * (result.size - few), 1)
    return results


def table(results: Sequence[OperationResult]) -> list[str]:
    """Thousands of instructions and of modelled cycles."""
    if not results:
        return []
    names = [core.name for core in model.CORES]
    lines = ["", f"| operation | level | size | instructions | {' | '.join(names)} |"]
    lines.append("|---" * (4 + len(names)) + "|")
    for r in results:
        cycles = [f"{r.cycles[n] / 1e3:.2f}" if n in r.cycles else "" for n in names]
        cells = [r.operation, r.level, str(r.size), f"{r.instructions / 1e3:.2f}", *cycles]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
