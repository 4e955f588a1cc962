"""Floats to coded matrices: nearest codes under the best scale that a short search finds.

A scale is judged by what it leaves of the squared error once it is fitted to its own codes:
for codes ``q`` the best scale is ``sum(h x q) / sum(h q q)``. ``h`` is the importance of each
input, the mean of its squared activations, or 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.blocks import IQ4_NL_TABLE
from lanewise_quantizer.coded import (
    E8M0_LARGEST,
    SUPER_BLOCK,
    CodedMatrix,
    CodedType,
    Map,
    Minimum,
    Scale,
    Super,
    check_cols,
    round_row_scale,
)
from lanewise_quantizer.scale_search import (
    Codebook,
    fit_affine,
    fit_scales,
    inverse_of,
    largest_of,
)

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

CHUNK_WEIGHTS = 1 << 16  # their temporary arrays stay in a core's cache
F16_LARGEST = 65504.0
SIX_BITS = 63

# Codebooks for weights that were not sampled, about normally distributed; scales may mirror them.
DEFAULT_TABLES = {
    "cb2": (-127, -40, 29, 113, -77, -10, 47, 127, -110, -27, 40, 127, -127, -47, 10, 76),
    "cb3": (-127, -83, -50, -22, 4, 32, 66, 120, -120, -66, -32, -4, 22, 50, 83, 127),
    "cb4": IQ4_NL_TABLE,
}


def quantize_matrix(
    weights: Floats,
    kind: CodedType,
    table: Array | None = None,
    importance: Floats | None = None,
) -> CodedMatrix:
    """Quantize weights [rows, cols], for types that need one with a table of 16 int8.

    ``importance`` [cols] weighs the squared error of each input. ValueError for what cannot be
    quantized: NaN or infinity, values beyond what scales hold, rows that no group divides.
    """
    check_cols(kind, weights.shape[1])
    if kind.map is Map.TRELLIS:
        raise ValueError(f"{kind.name}: codes follow from each other; this search takes them alone")
    if kind.needs_table and table is None:
        raise ValueError(f"{kind.name}: a table of 16 int8 is needed")
    check_finite(weights)
    rows = max(1, CHUNK_WEIGHTS // weights.shape[1])
    h = None if importance is None else check_importance(importance, weights.shape[1])
    parts = [
        _quantize_rows(np.ascontiguousarray(weights[at : at + rows], np.float32), kind, table, h)
        for at in range(0, len(weights), rows)
    ]
    return join_rows(parts)


def check_finite(weights: Floats, rows: Sequence[int] | None = None) -> None:
    """Raise ValueError if a weight is NaN or infinite, naming the first; ``rows`` are numbers."""
    # The sum of finite floats may overflow, so it only rules the search out.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.dot(weights.reshape(-1), weights.reshape(-1))):
            return
    bad = np.argwhere(~np.isfinite(weights))
    if len(bad):
        row, col = (int(i) for i in bad[0])
        value = weights[row, col]
        number = row if rows is None else rows[row]
        raise ValueError(f"row {number}, column {col} is {value}; accepted: finite numbers")


def check_importance(importance: Floats, cols: int) -> Floats:
    """Return importance with mean 1, not quite zero anywhere; ValueError if it cannot weigh."""
    if importance.shape != (cols,) or not np.isfinite(importance).all() or importance.min() < 0:
        shape = list(importance.shape)
        raise ValueError(f"importance has shape {shape}; needed: [{cols}], finite, not negative")
    mean = float(importance.mean(dtype=np.float64))
    if mean <= 0:
        return np.ones(cols, np.float32)
    return (importance / mean + 1e-4).astype(np.float32)


def join_rows(parts: list[CodedMatrix]) -> CodedMatrix:
    """One matrix of the rows of several."""

    def joined(name: str) -> Array | None:
        found = [getattr(part, name) for part in parts]
        return None if found[0] is None else np.concatenate(found)

    names = ("scales", "minimums", "selectors", "super_scales", "super_minimums")
    codes = np.concatenate([part.codes for part in parts])
    fields = {name: joined(name) for name in names}
    scales = fields.pop("scales")
    assert scales is not None
    return CodedMatrix(parts[0].type, codes, scales, table=parts[0].table, **fields)


def _quantize_rows(
    weights: Floats, kind: CodedType, table: Array | None, importance: Floats | None
) -> CodedMatrix:
    rows, cols = weights.shape
    if kind.scale is Scale.ONE:
        return _quantize_whole_rows(weights, kind, importance)
    if missing := -cols % kind.group:  # what lies past the last input costs nothing
        weights = np.pad(weights, ((0, 0), (0, missing)))
        known = np.ones(cols, np.float32) if importance is None else importance
        importance = np.pad(known, (0, missing))
    groups = weights.shape[1] // kind.group
    x = np.ascontiguousarray(weights.reshape(-1, kind.group).T)  # [group, rows * groups]
    h = None
    if importance is not None:
        h = np.tile(importance.reshape(groups, kind.group).T, (1, rows))
    search = Search(x, h, rows, kind, table)
    if kind.minimum is not Minimum.NONE:
        codes, parts = search.with_minimums()
    elif kind.scale is Scale.E8M0:
        codes, parts = search.powers_of_two()
    else:
        codes, parts = search.symmetric()
    in_rows = np.ascontiguousarray(codes.T).reshape(rows, -1)[:, :cols]
    own_table = table if kind.needs_table else None
    parts = {name: part.reshape(rows, -1) for name, part in parts.items()}
    if kind.super is Super.ROW:
        parts["super_scales"] = parts["super_scales"][:, 0]
    return CodedMatrix(kind, np.ascontiguousarray(in_rows), table=own_table, **parts).validate()


def _quantize_whole_rows(
    weights: Floats, kind: CodedType, importance: Floats | None
) -> CodedMatrix:
    """Rows with one scale."""
    x = np.ascontiguousarray(weights.T)  # [cols, rows]
    h = None if importance is None else np.broadcast_to(importance[:, None], x.shape)
    book = Codebook.of(kind, None)[0]
    scales = round_row_scale(fit_scales(x, h, book)[0])
    codes = np.ascontiguousarray(book.codes(x * inverse_of(scales)).T)
    none = np.zeros((len(codes), 0), np.uint8)
    return CodedMatrix(kind, codes, none, super_scales=scales).validate()


@dataclass(frozen=True)
class Search:
    """The groups of some rows, a group in each column of ``x``; gives codes and fields."""

    x: Floats
    h: Floats | None
    rows: int
    kind: CodedType
    table: Array | None

    def symmetric(self) -> tuple[Array, dict[str, Array]]:
        """Scales without minimums, over one codebook or the best of several."""
        books = Codebook.of(self.kind, self.table)
        fits = [fit_scales(self.x, self.h, book) for book in books]
        chosen = np.argmax([gain for _, gain in fits], axis=0).astype(np.uint8)
        parts, real = self._store_scales(np.choose(chosen, [scale for scale, _ in fits]))
        inverse = inverse_of(real)
        codes = books[0].codes(self.x * inverse)
        for index, book in enumerate(books[1:], start=1):
            codes = np.where(chosen == index, book.codes(self.x * inverse), codes)
        if self.kind.selector_bits:
            parts["selectors"] = chosen
        return codes, parts

    def _store_scales(self, scales: Floats) -> tuple[dict[str, Array], Floats]:
        """The stored form of real scales [groups], and what they then are."""
        if self.kind.super is Super.NONE:
            halves = to_f16(scales)
            return {"scales": halves}, halves.astype(np.float32)
        per_row = scales.reshape(self.rows, -1)
        if self.kind.super is Super.ROW:
            low, top = -127, 127
            supers: Array = round_row_scale(np.abs(per_row).max(axis=1) / np.float32(top))
            spread = supers.repeat(per_row.shape[1])
        else:  # the integers have one more on the negative side: for the largest scale
            low = -128 if self.kind.name == "q6_k" else -32
            top = -1 - low
            blocks = self._blocks(per_row)
            supers = to_f16(largest_of(blocks) / np.float32(low))
            spread = self._spread(supers)
        numbers = np.clip(np.rint(scales * inverse_of(spread)), low, top).astype(np.int8)
        return {"scales": numbers, "super_scales": supers}, numbers * spread

    def _blocks(self, per_row: Floats) -> Floats:
        """Numbers of groups [rows, groups] as [groups of a block, blocks], zeros at the end."""
        per_block = SUPER_BLOCK // self.kind.group
        padded = np.pad(per_row, ((0, 0), (0, -per_row.shape[1] % per_block)))
        return padded.reshape(-1, per_block).T

    def _spread(self, supers: Array) -> Floats:
        """The super scale of each group."""
        groups = self.x.shape[1] // self.rows
        per_block = SUPER_BLOCK // self.kind.group
        spread = supers.astype(np.float32).reshape(self.rows, -1).repeat(per_block, axis=1)
        return spread[:, :groups].reshape(-1)

    def powers_of_two(self) -> tuple[Array, dict[str, Array]]:
        """Scales that are powers of two: the best of three around the largest weight's."""
        book = Codebook.of(self.kind, None)[0]
        peak = np.maximum(np.abs(largest_of(self.x)), np.float32(2.0**-126))
        top = np.ceil(np.log2(peak / np.float32(book.high)))
        best = np.full(peak.shape, np.inf, np.float32)
        exponents = np.zeros(peak.shape, np.int32)
        for step in (-1, 0, 1):
            exponent = np.clip(top + step, -128, E8M0_LARGEST - 128).astype(np.int32)
            scale = np.ldexp(np.float32(1), exponent)
            left = self.x - book.values(self.x * inverse_of(scale)) * scale
            left *= left
            error = (left if self.h is None else left * self.h).sum(axis=0)
            better = error < best
            np.copyto(best, error, where=better)
            np.copyto(exponents, exponent, where=better)
        scale = np.ldexp(np.float32(1), exponents)
        codes = book.codes(self.x * inverse_of(scale))
        return codes, {"scales": (exponents + 128).astype(np.uint8)}

    def with_minimums(self) -> tuple[Array, dict[str, Array]]:
        """Scales and minimums, or scales and zero points."""
        kind, top = self.kind, np.float32((1 << self.kind.bits) - 1)
        scales, minimums = fit_affine(self.x, self.h, int(top), kind.minimum)
        parts: dict[str, Array]
        if kind.minimum in (Minimum.F16, Minimum.ZERO):
            halves = to_f16(scales)
            real, parts = halves.astype(np.float32), {"scales": halves}
            if kind.minimum is Minimum.F16:
                parts["minimums"] = to_f16(minimums)
                low = parts["minimums"].astype(np.float32)
            else:
                zeros = np.clip(np.rint(minimums * inverse_of(real)), 0, top)
                parts["minimums"] = zeros.astype(np.uint8)
                low = zeros * real
        else:
            limit = 15 if kind.minimum is Minimum.NIBBLES else SIX_BITS
            supers, numbers, real = self._two_levels(scales, limit)
            super_minimums, minimum_numbers, low = self._two_levels(minimums, limit)
            parts = {"super_scales": supers, "super_minimums": super_minimums}
            if kind.minimum is Minimum.NIBBLES:
                parts["scales"] = numbers | minimum_numbers << 4
            else:
                parts |= {"scales": numbers.astype(np.int8), "minimums": minimum_numbers}
        codes = np.clip(np.rint((self.x + low) * inverse_of(real)), 0, top)
        return codes.astype(np.uint8), parts

    def _two_levels(self, values: Floats, limit: int) -> tuple[Array, Array, Floats]:
        """Super scales, integers up to ``limit``, and what they come to, of values from 0."""
        blocks = self._blocks(values.reshape(self.rows, -1))
        supers = to_f16(blocks.max(axis=0) / np.float32(limit))
        spread = self._spread(supers)
        numbers = np.clip(np.rint(values * inverse_of(spread)), 0, limit).astype(np.uint8)
        return supers, numbers, numbers * spread


def to_f16(values: Floats) -> npt.NDArray[np.float16]:
    """Round to f16; ValueError for what is beyond its range."""
    largest = float(np.abs(values).max(initial=0))
    if largest > F16_LARGEST:
        raise ValueError(
            f"a scale or minimum of {largest:.4g} is needed; accepted: up to {F16_LARGEST:g},"
            " the largest f16"
        )
    return values.astype(np.float16)
