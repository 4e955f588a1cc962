"""What scales and minimums a coded type can store, for the groups of some rows.

Scales and minimums here are real numbers [..., rows], exactly as the type decodes them. Where a
type has super scales they are chosen when a block of groups is opened, from what its groups want,
with room for the larger values that error feedback will ask for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lanewise_quantizer.coded import (
    E8M0_LARGEST,
    CodedMatrix,
    CodedType,
    Map,
    Minimum,
    Scale,
    Super,
    round_row_scale,
)
from lanewise_quantizer.planes import chained
from lanewise_quantizer.scale_search import inverse_of

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

HEADROOM = np.float32(1.4)  # of a row's super scale (guide/decisions/feedback-without-inverse.md)
TINY_SCALE = np.float32(2.0**-100)  # a super scale of nothing but zeros
F16_LARGEST = np.float32(65504)


def scale_limits(kind: CodedType) -> tuple[int, int]:
    """The smallest and largest integer a stored scale can be, for types with super scales."""
    if kind.scale is Scale.NIBBLES:
        return 0, 15
    if kind.minimum is Minimum.U8:
        return 0, 63
    if kind.super is Super.ROW:
        return -127, 127
    return (-128, 127) if kind.name == "q6_k" else (-32, 31)


def signed_scales(kind: CodedType) -> bool:
    """Whether a scale may be negative."""
    return kind.minimum is Minimum.NONE and kind.scale is not Scale.E8M0


class Grid:
    """Rounds scales and minimums to what ``kind`` can store, for ``rows`` rows."""

    def __init__(self, kind: CodedType, rows: int) -> None:
        self.kind, self.rows = kind, rows
        self.low, self.high = scale_limits(kind)
        self.minimum_high = 15 if kind.minimum is Minimum.NIBBLES else 63
        self.super: Floats = np.ones(rows, np.float32)
        self.super_minimum: Floats = np.ones(rows, np.float32)

    def choose_supers(self, scales: Floats, minimums: Floats | None) -> None:
        """Choose super scales for groups that want these scales and minimums [groups, rows]."""
        if self.kind.super is Super.NONE:
            return
        top = np.abs(scales).max(axis=0) / np.float32(self.high)
        if self.kind.super is Super.ROW:
            self.super = round_row_scale(np.maximum(top * HEADROOM, TINY_SCALE))
            return
        self.super = _f16(top)
        if minimums is not None:
            self.super_minimum = _f16(minimums.max(axis=0) / np.float32(self.minimum_high))

    def scales(self, wanted: Floats) -> Floats:
        """The nearest storable scales."""
        if self.kind.super is not Super.NONE:
            numbers = np.rint(wanted * inverse_of(self.super))
            rounded: Floats = np.clip(numbers, self.low, self.high) * self.super
            return rounded
        if self.kind.scale is Scale.E8M0:
            exponents = np.rint(np.log2(np.maximum(wanted, np.float32(2.0**-126))))
            stored = np.clip(exponents, -128, E8M0_LARGEST - 128).astype(np.int32)
            powers: Floats = np.ldexp(np.float32(1), stored)
            return powers
        return _f16(wanted)

    def minimums(self, wanted: Floats, scales: Floats) -> Floats:
        """The nearest storable minimums beside these scales."""
        if self.kind.minimum is Minimum.F16:
            return _f16(wanted)
        if self.kind.minimum is Minimum.ZERO:
            offset = np.float32(self.kind.offset)
            zeros = np.rint(wanted * inverse_of(scales)) + offset
            moved: Floats = (np.clip(zeros, 0, (1 << self.kind.bits) - 1) - offset) * scales
            return moved
        numbers = np.rint(wanted * inverse_of(self.super_minimum))
        held: Floats = np.clip(numbers, 0, self.minimum_high) * self.super_minimum
        return held

    def steps(self, scales: Floats) -> Floats:
        """How far to the next scale worth trying."""
        if self.kind.super is not Super.NONE:
            return self.super
        part = np.float32(1 if self.kind.scale is Scale.E8M0 else 0.02)
        return np.maximum(np.abs(scales) * part, np.float32(2.0**-24))

    def minimum_steps(self, scales: Floats) -> Floats:
        """How far to the next minimum worth trying."""
        if self.kind.minimum is Minimum.ZERO:
            return scales
        if self.kind.minimum is Minimum.F16:
            return scales * np.float32(0.1)
        return self.super_minimum


def _f16(values: Floats) -> Floats:
    return np.clip(values, -F16_LARGEST, F16_LARGEST).astype(np.float16).astype(np.float32)


class Stored:
    """The codes, scales and minimums of some rows as they are found, and the matrix they make."""

    def __init__(
        self, kind: CodedType, rows: int, cols: int, table: npt.NDArray[np.int8] | None
    ) -> None:
        groups = -(-cols // kind.group)
        self.kind, self.cols, self.table = kind, cols, table
        self.codes = np.zeros((groups * kind.group, rows), np.uint8)
        self.scales = np.zeros((groups, rows), np.float32)
        self.minimums = None if kind.minimum is Minimum.NONE else np.zeros_like(self.scales)
        self.selectors = np.zeros((groups, rows), np.uint8)
        self.supers: list[Floats] = []
        self.super_minimums: list[Floats] = []

    def keep_supers(self, grid: Grid) -> None:
        """Keep the super scales of a block."""
        self.supers.append(grid.super)
        self.super_minimums.append(grid.super_minimum)

    def matrix(self) -> CodedMatrix:
        """The coded matrix [rows, cols]."""
        kind = self.kind
        parts: dict[str, npt.NDArray[np.generic]] = {}
        if kind.super is Super.ROW:
            parts["super_scales"] = self.supers[0]
        elif kind.super is Super.BLOCK:
            parts["super_scales"] = np.stack(self.supers, axis=1).astype(np.float16)
        if kind.has_super_minimum:
            parts["super_minimums"] = np.stack(self.super_minimums, axis=1).astype(np.float16)
        parts |= self._scales()
        if kind.selector_bits:
            parts["selectors"] = np.ascontiguousarray(self.selectors.T)
        codes = np.ascontiguousarray(self.codes[: self.cols].T)
        if kind.map is Map.TRELLIS:
            codes = chained(codes)
        table = self.table if kind.needs_table else None
        return CodedMatrix(kind, codes, table=table, **parts).validate()

    def _scales(self) -> dict[str, npt.NDArray[np.generic]]:
        kind = self.kind
        if kind.scale is Scale.E8M0:
            return {"scales": (np.log2(self.scales.T) + 128).astype(np.uint8)}
        if kind.super is Super.NONE:
            parts: dict[str, npt.NDArray[np.generic]] = {"scales": self.scales.T.astype(np.float16)}
            if kind.minimum is Minimum.F16:
                assert self.minimums is not None
                parts["minimums"] = self.minimums.T.astype(np.float16)
            elif kind.minimum is Minimum.ZERO:
                assert self.minimums is not None
                zeros = np.rint(self.minimums * inverse_of(self.scales)) + kind.offset
                parts["minimums"] = zeros.T.astype(np.uint8)
            return parts
        numbers = self._numbers(self.scales, self.supers)
        if kind.minimum is Minimum.NONE:
            return {"scales": numbers.astype(np.int8)}
        assert self.minimums is not None
        lows = self._numbers(self.minimums, self.super_minimums).astype(np.uint8)
        if kind.minimum is Minimum.NIBBLES:
            return {"scales": numbers.astype(np.uint8) | lows << 4}
        return {"scales": numbers.astype(np.int8), "minimums": lows}

    def _numbers(self, values: Floats, supers: list[Floats]) -> Floats:
        per_super = -(-len(values) // len(supers))
        spread = np.repeat(np.stack(supers), per_super, axis=0)[: len(values)]
        numbers: Floats = np.rint(values * inverse_of(spread)).T
        return numbers
