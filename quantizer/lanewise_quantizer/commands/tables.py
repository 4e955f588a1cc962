"""The tables that the types of a result have, and which matrices stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Checkpoint
from lanewise_quantizer.coded import CODED_TYPES
from lanewise_quantizer.commands.plan import Target, own_type
from lanewise_quantizer.fit.samples import sample_groups
from lanewise_quantizer.fit.source import Multiplied, Source
from lanewise_quantizer.fit.tables import default_table, fit_table

Tables = dict[str, npt.NDArray[np.int8]]


@dataclass(frozen=True)
class Fitting:
    """What the numbers of a model say about how to quantize it."""

    tables: Mapping[str, npt.NDArray[np.int8]]  # by type

    @staticmethod
    def default(targets: Iterable[Target]) -> Fitting:
        """Tables for weights that were not sampled, for the types that need one."""
        targets = list(targets)
        known = tables_of_source(targets)
        others = needed_tables(targets) - known.keys()
        return Fitting(known | {name: default_table(CODED_TYPES[name]) for name in sorted(others)})

    @staticmethod
    def to_weights(checkpoint: Checkpoint, targets: Sequence[Target]) -> Fitting:
        """Tables fitted to the model's weights, for the types that need one."""
        known = tables_of_source(targets)
        others = needed_tables(targets) - known.keys()
        if not others:
            return Fitting(known)
        samples = sample_groups(Source(checkpoint))
        return Fitting(
            known | {name: fit_table(CODED_TYPES[name], samples) for name in sorted(others)}
        )

    def table(self, kind: str) -> bytes | None:
        """Return the table of a type as stored, if it has one."""
        table = self.tables.get(kind)
        return None if table is None else table.tobytes()


def needed_tables(targets: Iterable[Target]) -> set[str]:
    """Return the types of a result that need a table."""
    return {t.type for t in targets if t.type in CODED_TYPES and CODED_TYPES[t.type].needs_table}


def tables_of_source(targets: Iterable[Target]) -> Tables:
    """Return the tables of types that matrices have already, where all of a type have one."""
    found: dict[str, set[bytes]] = {}
    for target in targets:
        if target.source.table is not None and own_type(target.source) == target.type:
            found.setdefault(target.type, set()).add(target.source.table)
    return {
        name: np.frombuffer(next(iter(tables)), np.int8)
        for name, tables in found.items()
        if len(tables) == 1
    }


def is_copied(target: Target, fitting: Fitting) -> bool:
    """Return whether a matrix stays as it is: to quantize it again would only lose."""
    return (
        target.is_matrix
        and own_type(target.source) == target.type
        and target.columns is None
        and not isinstance(target.source, Multiplied)
        and target.source.table == fitting.table(target.type)
    )
