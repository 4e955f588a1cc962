"""Group after group, each one's target moved by the errors before it (see feedback.py)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lanewise_quantizer import coded
from lanewise_quantizer.coded import SEGMENT, SUPER_BLOCK, CodedMatrix, CodedType, Super
from lanewise_quantizer.fit.grid import Grid, Stored
from lanewise_quantizer.fit.group import Book, Choice, Encode, GroupFitter, Metric
from lanewise_quantizer.fit.hessian import Hessian

Floats = npt.NDArray[np.float32]


class FirstPass:
    """The first pass over some rows; arrays are [inputs, rows]."""

    def __init__(
        self,
        kind: CodedType,
        book: Book,
        hessian: Hessian,
        wanted: Floats,
        stored: Stored,
        encode: Encode,
    ) -> None:
        self.kind, self.book, self.hessian, self.encode = kind, book, hessian, encode
        self.wanted, self.stored = wanted, stored
        self.values = np.zeros_like(wanted)
        self.rows = wanted.shape[1]
        self.grids: list[Grid] = []
        self.per_super = {
            Super.ROW: len(wanted),
            Super.BLOCK: SUPER_BLOCK,
            Super.NONE: len(wanted),
        }[kind.super]

    def run(self) -> None:
        """Quantize group after group."""
        targets = self.wanted.copy()
        group = self.kind.group
        states = np.zeros(self.rows, np.uint8)
        for begin in range(0, len(targets), SEGMENT):
            end = min(begin + SEGMENT, len(targets))
            states[:] = 0
            for at in range(begin, end, group):
                if at % self.per_super == 0:
                    self._choose_supers(targets[at : at + self.per_super], at)
                span = slice(at, at + group)
                fitter = GroupFitter(self.book, self.grid(at), self.encode)
                target = np.ascontiguousarray(targets[span])
                choice = fitter.search(target, self.metric(span), states)
                self.keep(span, choice)
                if self.kind.map is coded.Map.TRELLIS:
                    states = choice.codes[-1]
                self._feed(targets, span, at + group, end)
            self._feed(targets, slice(begin, end), end, len(targets))

    def grid(self, at: int) -> Grid:
        """The grid of the group that begins at an input."""
        return self.grids[at // self.per_super]

    def metric(self, span: slice) -> Metric:
        """The loss of some inputs whose targets hold what the inputs before them fed back."""
        weights = np.ascontiguousarray(self.hessian.weights[span])
        if not len(self.hessian.unit):
            return Metric.diagonal(weights)
        return Metric.factored(self.hessian.unit[span, span], weights)

    def keep(self, span: slice, choice: Choice) -> None:
        """Store what was chosen for the group of these inputs; its codes as level numbers."""
        g = span.start // self.kind.group
        self.stored.codes[span] = choice.codes
        self.stored.scales[g] = choice.scales
        if choice.minimums is not None:
            assert self.stored.minimums is not None
            self.stored.minimums[g] = choice.minimums
        self.stored.selectors[g] = choice.selectors
        self.values[span] = choice.values

    def finish(self) -> CodedMatrix:
        """The matrix."""
        group = self.kind.group
        for g, selectors in enumerate(self.stored.selectors):
            span = slice(g * group, (g + 1) * group)
            self.stored.codes[span] = self.book.stored(self.stored.codes[span], selectors)
        return self.stored.matrix()

    def _feed(self, targets: Floats, span: slice, begin: int, end: int) -> None:
        """Move the targets of inputs begin .. end-1 by the errors of those in ``span``."""
        if len(self.hessian.unit) and begin < end:
            errors = self.wanted[span] - self.values[span]
            targets[begin:end] += self.hessian.unit[span, begin:end].T @ errors

    def _choose_supers(self, targets: Floats, begin: int) -> None:
        """Choose the super scales of a block of inputs."""
        grid = Grid(self.kind, self.rows)
        if self.kind.super is Super.ROW:  # one group's largest weight bounds its scale well enough
            groups = np.abs(targets).reshape(-1, self.kind.group, self.rows).max(axis=1)
            grid.choose_supers(groups / min(self.book.peaks), None)
            self.stored.keep_supers(grid)
        elif self.kind.super is Super.BLOCK:
            fitter = GroupFitter(self.book, None, self.encode)
            states = np.zeros(self.rows, np.uint8)
            found = []
            for at in range(0, len(targets), self.kind.group):
                weights = self._importance(slice(begin + at, begin + at + self.kind.group))
                target = np.ascontiguousarray(targets[at : at + self.kind.group])
                found.append(fitter.search(target, Metric.diagonal(weights), states, 1))
            lows = [choice.minimums for choice in found if choice.minimums is not None]
            grid.choose_supers(
                np.stack([c.scales for c in found]), np.stack(lows) if lows else None
            )
            self.stored.keep_supers(grid)
        self.grids.append(grid)

    def _importance(self, span: slice) -> Floats:
        if len(self.hessian.h):
            return np.ascontiguousarray(np.diag(self.hessian.h)[span])
        return np.ascontiguousarray(self.hessian.weights[span])
