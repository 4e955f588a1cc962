"""Codes for columns of a matrix: ``lw_fit``, shared among threads."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise.native.library import native

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class Map(IntEnum):
    """How a code becomes a level; the numbers are those of ``lw_fit_map``."""

    UNIFORM = 0
    TABLE = 1
    TRELLIS = 2


@dataclass(frozen=True)
class Levels:
    """What a scale multiplies: ``low`` to ``high``, or ``tables`` [selectors, levels]."""

    map: Map
    low: int = 0
    high: int = 0
    tables: Floats | None = None


@dataclass(frozen=True)
class Candidates:
    """Scales and minimums [candidates, groups, rows] and selectors [candidates, rows] to try."""

    scales: Floats
    minimums: Floats | None = None
    selectors: Bytes | None = None


@dataclass(frozen=True)
class Fit:
    """For each row: codes and their values [columns, rows], losses and candidates chosen [rows]."""

    codes: Bytes
    values: Floats
    losses: Floats
    choices: npt.NDArray[np.uint32]


def fit(
    levels: Levels,
    targets: Floats,
    weights: Floats,
    feedback: Floats | None,
    candidates: Candidates,
    states: Bytes | None = None,
) -> Fit:
    """Quantize columns: see ``lw_fit`` in the library's header. ``targets`` is [columns, rows]."""
    columns, rows = targets.shape
    tried, groups, _ = candidates.scales.shape
    out = Fit(
        np.empty((columns, rows), np.uint8),
        np.empty((columns, rows), np.float32),
        np.empty(rows, np.float32),
        np.empty(rows, np.uint32),
    )
    library = native()
    job = library.ffi.new("lw_fit_job*")
    job.map, job.low, job.high = int(levels.map), levels.low, levels.high
    job.rows, job.columns, job.group, job.n_candidates = rows, columns, columns // groups, tried
    if levels.tables is not None:
        job.n_selectors, job.n_levels = levels.tables.shape
    arrays: dict[str, tuple[str, Any]] = {
        "levels": ("float", levels.tables),
        "targets": ("float", targets),
        "weights": ("float", weights),
        "feedback": ("float", feedback),
        "scales": ("float", candidates.scales),
        "minimums": ("float", candidates.minimums),
        "selectors": ("uint8_t", candidates.selectors),
        "states": ("uint8_t", states),
        "codes": ("uint8_t", out.codes),
        "values": ("float", out.values),
        "losses": ("float", out.losses),
        "choices": ("uint32_t", out.choices),
    }
    kept = []
    for name, (kind, array) in arrays.items():
        if array is not None:
            dtype = {"float": np.float32, "uint8_t": np.uint8, "uint32_t": np.uint32}[kind]
            array = np.ascontiguousarray(array, dtype)
            kept.append(array)
            setattr(job, name, library.ffi.from_buffer(f"{kind}[]", array))

    def part(begin: int, end: int) -> None:
        library.check(library.lib.lw_fit(job, begin, end))

    share = -(-rows // (8 * _threads)) * 8  # whole lanes
    if rows <= 64 or _threads == 1:
        part(0, rows)
    else:
        spans = [(i, min(i + share, rows)) for i in range(0, rows, share)]
        list(_pool(_threads).map(lambda span: part(*span), spans))
    return out


_threads = 1


def use_threads(threads: int) -> None:
    """Have :func:`fit` share its rows among so many threads; one unless this is called."""
    global _threads
    _threads = threads


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)
