"""Scale, minimum, selector and codes of one group of every row, under a given quadratic loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanewise.runtime.fitting import Candidates, Fit, Levels, Map, fit
from lanewise_quantizer import coded
from lanewise_quantizer.coded import CodedType, Minimum, Scale
from lanewise_quantizer.fit.grid import Grid, signed_scales

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Encode = Callable[[Levels, Floats, Floats, Floats | None, Candidates, Bytes | None], Fit]

# Scales tried first, as parts of the one that puts the largest target on the outermost level.
FACTORS = (0.7, 0.85, 0.58, 1.05, 0.46, 1.3)
FINE_FACTORS = (0.94, 0.86, 1.03, 0.78, 1.14, 1.3)
FED_BACK = (1.0, 1.16, 1.35)  # of the best scale without feedback, which makes targets larger
TINY = np.float32(1e-30)


class Book:
    """The levels of a type with its table, and the stored code of each level."""

    def __init__(self, kind: CodedType, table: npt.NDArray[np.generic] | None) -> None:
        if kind.scale is Scale.ONE:
            raise ValueError(f"{kind.name}: no groups whose scales to fit; rows have one scale")
        self.kind = kind
        top = (1 << kind.bits) - 1
        self.order: Bytes | None = None
        if kind.map is coded.Map.OFFSET:
            self.levels = Levels(Map.UNIFORM, -kind.offset, top - kind.offset)
            self.peaks = [np.float32(max(kind.offset, top - kind.offset))]
            return
        entries = np.asarray(table if kind.table is None else kind.table, np.float32)
        if kind.map is coded.Map.TRELLIS:
            tables = entries.reshape(1, -1)
            self.levels = Levels(Map.TRELLIS, tables=tables)
        else:
            tables = entries.reshape(1 << kind.selector_bits, 1 << kind.bits)
            self.order = tables.argsort(axis=1, kind="stable").astype(np.uint8)
            self.levels = Levels(Map.TABLE, tables=np.sort(tables, axis=1, kind="stable"))
        self.peaks = list(np.abs(tables).max(axis=1))

    def mapped(self, codes: Bytes, selectors: Bytes, states: Bytes) -> Floats:
        """The level of each level number [inputs, rows]; ``states`` are the codes before."""
        if self.levels.map is Map.UNIFORM:
            return codes.astype(np.float32) + np.float32(self.levels.low)
        assert self.levels.tables is not None
        index = codes
        if self.levels.map is Map.TRELLIS:
            index = codes << 2 | np.concatenate([states[None], codes[:-1]])
        width = np.uint8(self.levels.tables.shape[1])  # a byte holds the number of every level
        mapped: Floats = self.levels.tables.reshape(-1).take(selectors * width + index)
        return mapped

    def stored(self, codes: Bytes, selectors: Bytes) -> Bytes:
        """The codes that a matrix of the type stores for level numbers."""
        return codes if self.order is None else self.order[selectors, codes]

    def factors(self) -> tuple[float, ...]:
        """The first scales to try."""
        many = self.kind.bits > 3
        return (1.0,) if self.kind.bits > 6 else FINE_FACTORS if many else FACTORS


@dataclass(frozen=True)
class Metric:
    """A loss of errors e [inputs, rows]: the sum of squares of whiten.T @ e, of which ``fit``
    takes an input at a time: weights [inputs], and feedback [inputs, inputs] or None."""

    weights: Floats
    feedback: Floats | None
    whiten: Floats

    @staticmethod
    def diagonal(weights: Floats) -> Metric:
        """Each input's error counts for itself."""
        return Metric(weights, None, np.diag(np.sqrt(weights)))

    @staticmethod
    def factored(unit: Floats, weights: Floats) -> Metric:
        """For the matrix unit @ diag(weights) @ unit.T, with ``unit`` upper triangular."""
        inverse = np.linalg.inv(unit.astype(np.float64)).astype(np.float32)
        return Metric(weights, inverse, unit * np.sqrt(weights))

    def loss(self, errors: Floats) -> Floats:
        """The loss of each row."""
        total: Floats = np.square(self.whiten.T @ errors).sum(axis=0)
        return total


@dataclass(frozen=True)
class Choice:
    """One group of every row: level numbers and values [inputs, rows], and the rest [rows]."""

    codes: Bytes
    values: Floats
    scales: Floats
    minimums: Floats | None
    selectors: Bytes
    losses: Floats

    def better_of(self, other: Choice) -> Choice:
        """For each row the one of less loss."""
        take = other.losses < self.losses

        low = None
        if self.minimums is not None and other.minimums is not None:
            low = np.where(take, other.minimums, self.minimums)
        return Choice(
            np.where(take, other.codes, self.codes),
            np.where(take, other.values, self.values),
            np.where(take, other.scales, self.scales),
            low,
            np.where(take, other.selectors, self.selectors),
            np.where(take, other.losses, self.losses),
        )


class GroupFitter:
    """Finds the best of what a grid can store for one group at a time."""

    def __init__(self, book: Book, grid: Grid | None, encode: Encode = fit) -> None:
        self.book, self.grid, self.encode = book, grid, encode
        self.kind = book.kind

    def search(self, targets: Floats, metric: Metric, states: Bytes, refits: int = 2) -> Choice:
        """From scratch: many scales, then those around the least-squares one of the best."""
        first = self._first(targets)
        # A path for each state makes feedback dear in a trellis: most scales are left out before.
        if metric.feedback is not None and self.kind.map is coded.Map.TRELLIS:
            plain = Metric(metric.weights, None, metric.whiten)
            best = self.evaluate(targets, plain, states, first)
            wider = [best.scales * np.float32(factor) for factor in FED_BACK]
            first = self._candidates(wider, None, [best.selectors] * len(wider))
        best = self.evaluate(targets, metric, states, first)
        for _ in range(refits):
            best = best.better_of(self.refine(targets, metric, states, best))
        return best

    def refine(self, targets: Floats, metric: Metric, states: Bytes, best: Choice) -> Choice:
        """The best around the least-squares scale and minimum of the codes found."""
        scales, minimums = self._least_squares(targets, metric, states, best)
        return self.evaluate(targets, metric, states, self.around(scales, minimums, best.selectors))

    def evaluate(self, targets: Floats, metric: Metric, states: Bytes, tried: Candidates) -> Choice:
        """The best of some candidates that the grid can store."""
        found = self.encode(
            self.book.levels, targets, metric.weights, metric.feedback, tried, states
        )
        rows = np.arange(targets.shape[1])
        scales = tried.scales[found.choices, 0, rows]
        lows = None if tried.minimums is None else tried.minimums[found.choices, 0, rows]
        selectors = np.zeros(len(rows), np.uint8)
        if tried.selectors is not None:
            selectors = tried.selectors[found.choices, rows]
        return Choice(found.codes, found.values, scales, lows, selectors, found.losses)

    def around(self, scales: Floats, minimums: Floats | None, selectors: Bytes) -> Candidates:
        """Scales [rows] and their neighbours, each with the minimum and its neighbours."""
        step = np.float32(0) if self.grid is None else self.grid.steps(scales)
        wanted = [scales] if self.grid is None else [scales, scales + step, scales - step]
        if minimums is None:
            return self._candidates(wanted, None, [selectors] * len(wanted))
        if self.grid is None:
            return self._candidates(wanted, [minimums], [selectors])
        nudge = self.grid.minimum_steps(scales)
        pairs = [(s, minimums) for s in wanted]
        pairs += [(scales, minimums + nudge), (scales, minimums - nudge)]
        return self._candidates([s for s, _ in pairs], [m for _, m in pairs], [selectors] * 5)

    def _first(self, targets: Floats) -> Candidates:
        factors = [np.float32(f) for f in self.book.factors()]
        if self.kind.minimum is not Minimum.NONE:
            return self._first_ranges(targets, factors)
        most = np.abs(targets).max(axis=0)
        scales, selectors = [], []
        signs = (1, -1) if signed_scales(self.kind) else (1,)
        if self.kind.scale is Scale.E8M0:
            factors = [np.float32(f) for f in (2.0, 1.0, 0.5)]
        for number, peak in enumerate(self.book.peaks):
            for sign in signs:
                for factor in factors:
                    scales.append(most * (sign * factor / peak))
                    selectors.append(np.full(len(most), number, np.uint8))
        return self._candidates(scales, None, selectors)

    def _first_ranges(self, targets: Floats, factors: list[np.float32]) -> Candidates:
        """Ranges of the targets, shrunk towards their middle or towards either end."""
        low, most = targets.min(axis=0), targets.max(axis=0)
        if self.kind.minimum is not Minimum.F16:
            low = np.minimum(low, np.float32(0))
        if self.kind.minimum is Minimum.ZERO:
            most = np.maximum(most, np.float32(0))
        top = np.float32((1 << self.kind.bits) - 1)
        scales, minimums = [], []
        for factor in factors:
            for fixed in (0.0, 0.5, 1.0) if factor != 1 else (0.5,):
                span = (most - low) * factor
                start = low + (most - low - span) * np.float32(fixed)
                scales.append(np.maximum(span / top, TINY))
                minimums.append(-start + scales[-1] * np.float32(self.book.levels.low))
        return self._candidates(scales, minimums, [np.zeros(len(low), np.uint8)] * len(scales))

    def _candidates(
        self, scales: list[Floats], minimums: list[Floats] | None, selectors: list[Bytes]
    ) -> Candidates:
        steps = np.stack(scales).astype(np.float32)
        if self.kind.minimum is not Minimum.NONE:
            steps = np.maximum(steps, TINY)
        if self.grid is not None:
            steps = self.grid.scales(steps)
        lows = None
        if minimums is not None:
            lows = np.stack(minimums).astype(np.float32)
            if self.kind.minimum in (Minimum.U8, Minimum.NIBBLES):
                lows = np.maximum(lows, np.float32(0))
            lows = lows if self.grid is None else self.grid.minimums(lows, steps)
            lows = lows[:, None]
        chosen = np.stack(selectors) if len(self.book.peaks) > 1 else None
        return Candidates(steps[:, None], lows, chosen)

    def _least_squares(
        self, targets: Floats, metric: Metric, states: Bytes, best: Choice
    ) -> tuple[Floats, Floats | None]:
        """The scale, and minimum if the type has one, of least loss for given codes."""
        levels = metric.whiten.T @ self.book.mapped(best.codes, best.selectors, states)
        wanted = metric.whiten.T @ targets
        qq, qx = np.square(levels).sum(axis=0), (levels * wanted).sum(axis=0)
        if best.minimums is None:
            return qx / np.maximum(qq, TINY), None
        if self.kind.minimum is Minimum.ZERO:  # the zero point stays, the scale moves both
            ratio = best.minimums / np.maximum(best.scales, TINY)
            moved = levels - metric.whiten.sum(axis=0)[:, None] * ratio
            scale = (moved * wanted).sum(axis=0) / np.maximum(np.square(moved).sum(axis=0), TINY)
            return scale, scale * ratio
        ones = metric.whiten.sum(axis=0)[:, None]
        oo, oq, ox = np.square(ones).sum(), (ones * levels).sum(axis=0), (ones * wanted).sum(axis=0)
        det = oo * qq - oq * oq
        ok = det > 1e-6 * oo * qq
        safe = np.where(ok, det, np.float32(1))
        scale = np.where(ok, (oo * qx - oq * ox) / safe, best.scales)
        minimum = np.where(ok, (oq * qx - qq * ox) / safe, best.minimums)
        if self.kind.minimum is not Minimum.F16:
            scale = np.where(minimum < 0, qx / np.maximum(qq, TINY), scale)
            minimum = np.maximum(minimum, np.float32(0))
        return scale.astype(np.float32), minimum.astype(np.float32)
