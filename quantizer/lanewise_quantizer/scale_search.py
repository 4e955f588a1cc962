"""Searches the scale of each group of weights: candidates, each fitted to its own codes.

Arrays are [n, groups], a group's ``n`` weights in a column, so that sums over a group are sums of
whole vectors.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise_quantizer.coded import CodedType, Map, Minimum, float_parts

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

# Scales tried, as parts of the one that puts the largest weight on the outermost code.
COARSE_FACTORS = (0.6, 0.7, 0.8, 0.9, 1.0)  # up to eight codes
FINE_FACTORS = (0.8, 0.86, 0.9, 0.94, 0.97, 1.0, 1.04)
PLACES = 2  # of the lookup of the nearest entry for each unit: midpoints lie between places
TINY = np.float32(1e-30)


@dataclass(frozen=True)
class Codebook:
    """The integers that codes of one group can stand for: a range, or the entries of a table."""

    low: int
    high: int
    offset: int = 0
    nearest: npt.NDArray[np.uint8] | None = None  # code nearest to [low + i / PLACES, + 1 / PLACES)
    nearest_values: Floats | None = None

    @staticmethod
    def of(kind: CodedType, table: Array | None) -> list["Codebook"]:
        """The codebooks that a group of this type may choose from."""
        if kind.map is Map.OFFSET:
            top = (1 << kind.bits) - 1
            return [Codebook(-kind.offset, top - kind.offset, kind.offset)]
        if kind.map is Map.FLOAT:
            parts = [float_parts(code) for code in range(1 << kind.bits)]
            return [Codebook.of_entries(np.array([4 * a + b for a, b in parts], np.float32))]
        entries = np.asarray(kind.table if kind.table is not None else table, np.float32)
        size = 1 << kind.bits
        starts = range(0, size << kind.selector_bits, size)
        return [Codebook.of_entries(entries[at : at + size]) for at in starts]

    @staticmethod
    def of_entries(entries: Floats) -> "Codebook":
        """A codebook of any integers."""
        low, high = int(entries.min()), int(entries.max())
        middles = (np.arange((high - low) * PLACES + 1, dtype=np.float32) + 0.5) / PLACES + low
        nearest = np.abs(middles[:, None] - entries).argmin(axis=1).astype(np.uint8)
        return Codebook(low, high, nearest=nearest, nearest_values=entries[nearest])

    def codes(self, u: Floats) -> npt.NDArray[np.uint8]:
        """The codes nearest to ``u``, weights over scale; ``u`` is overwritten."""
        if self.nearest is not None:
            return np.take(self.nearest, self._places(u), mode="clip")
        self._round(u)
        u += np.float32(self.offset)
        return u.astype(np.uint8)

    def values(self, u: Floats) -> Floats:
        """The integers nearest to ``u``, in its place."""
        if self.nearest_values is None:
            return self._round(u)
        return np.take(self.nearest_values, self._places(u), mode="clip", out=u)

    def _round(self, u: Floats) -> Floats:
        np.rint(u, out=u)
        np.maximum(u, np.float32(self.low), out=u)
        return np.minimum(u, np.float32(self.high), out=u)

    def _places(self, u: Floats) -> npt.NDArray[np.intp]:
        np.maximum(u, np.float32(self.low), out=u)
        np.minimum(u, np.float32(self.high), out=u)
        u -= np.float32(self.low)
        u *= np.float32(PLACES)
        return u.astype(np.intp)

    def candidates(self) -> list[np.float32]:
        """Scales to try, as parts of a group's largest weight; negative ones mirror the codes."""
        if self.nearest is None:
            outermost = self.low if -self.low > self.high else self.high
            if self.high - self.low >= 127:  # eight bits: there is nothing to gain
                return [np.float32(1 / self.high)]
            factors = FINE_FACTORS if self.high - self.low > 7 else COARSE_FACTORS
            return [np.float32(factor / outermost) for factor in factors]
        assert self.nearest_values is not None
        n_entries = len(np.unique(self.nearest_values))
        factors = FINE_FACTORS if n_entries > 8 else COARSE_FACTORS
        symmetric = np.isin(-self.nearest_values, self.nearest_values).all()
        ends = {self.high} if symmetric else {self.low, self.high}
        return [np.float32(f / end) for end in ends for f in factors]


def fit_scales(x: Floats, h: Floats | None, book: Codebook) -> tuple[Floats, Floats]:
    """The best scale found for each group of x [n, groups], and its gain, [groups].

    The gain is what the scale takes off the group's sum of squares. Scales may be negative.
    """
    largest = largest_of(x)
    best = np.zeros(x.shape[1], np.float32)
    best_gain = np.full(x.shape[1], -1, np.float32)
    hx = x if h is None else x * h
    u, product = np.empty_like(x), np.empty_like(x)
    for candidate in book.candidates():
        np.multiply(x, inverse_of(largest * candidate), out=u)
        q = book.values(u)
        a = np.multiply(hx, q, out=product).sum(axis=0)
        np.multiply(q, q, out=product)
        if h is not None:
            product *= h
        fitted = a / np.maximum(product.sum(axis=0), TINY)
        gain = a * fitted
        better = gain > best_gain
        np.copyto(best, fitted, where=better)
        np.copyto(best_gain, gain, where=better)
    return best, best_gain


def largest_of(x: Floats) -> Floats:
    """The weight of largest magnitude in each group, with its sign."""
    most, least = x.max(axis=0), x.min(axis=0)
    largest: Floats = np.where(most >= -least, most, least)
    return largest


def fit_affine(x: Floats, h: Floats | None, top: int, minimum: Minimum) -> tuple[Floats, Floats]:
    """Scales and minimums [groups] for codes from 0 to ``top``: x = scale * code - minimum.

    Minimums that are not F16 cannot be negative; zero points make the range contain 0.
    """
    low, most = x.min(axis=0), x.max(axis=0)
    if minimum is not Minimum.F16:
        low = np.minimum(low, np.float32(0))
    if minimum is Minimum.ZERO:
        most = np.maximum(most, np.float32(0))
    best_scale, best_minimum = (most - low) / np.float32(top), -low
    if top >= 127:  # eight bits: there is nothing to gain
        return best_scale, best_minimum
    weights = np.ones_like(x) if h is None else h
    start, sums = best_scale.copy(), Sums.of(x, weights)
    best_error = np.full(x.shape[1], np.inf, np.float32)
    for factor in COARSE_FACTORS if top <= 7 else FINE_FACTORS:
        scale = start * np.float32(factor)
        inverse = inverse_of(scale)
        q = (x - low) * inverse
        np.rint(q, out=q)
        np.minimum(q, np.float32(top), out=q)
        sums.add_codes(q)
        if minimum is Minimum.ZERO:
            zero = np.minimum(np.rint(-low * inverse), np.float32(top))
            fitted, offset = sums.fit_with_zero(zero)
        else:
            fitted, offset = sums.fit_both(scale, -low, minimum is not Minimum.F16)
        error = sums.error(fitted, offset)
        better = (error < best_error) & (fitted > 0)
        np.copyto(best_error, error, where=better)
        np.copyto(best_scale, fitted, where=better)
        np.copyto(best_minimum, offset, where=better)
    return best_scale, best_minimum


class Sums:
    """Weighted sums over each group: what least squares of scale and minimum needs."""

    def __init__(self, hx: Floats, h: Floats, x: Floats) -> None:
        self._hx, self._h = hx, h
        self.h, self.x, self.xx = h.sum(axis=0), hx.sum(axis=0), (hx * x).sum(axis=0)
        self._product = np.empty_like(hx)

    @staticmethod
    def of(x: Floats, h: Floats) -> "Sums":
        """The sums over weights x [n, groups] of importance h."""
        return Sums(x * h, h, x)

    def add_codes(self, q: Floats) -> None:
        """Take other codes [n, groups]."""
        self.xq = np.multiply(self._hx, q, out=self._product).sum(axis=0)
        hq = np.multiply(self._h, q, out=self._product)
        self.q = hq.sum(axis=0)
        hq *= q
        self.qq = hq.sum(axis=0)

    def fit_with_zero(self, zero: Floats) -> tuple[Floats, Floats]:
        """The best scale for ``scale * (code - zero)``, and scale * zero."""
        a = self.xq - zero * self.x
        b = self.qq - 2 * zero * self.q + zero * zero * self.h
        scale = a / np.maximum(b, TINY)
        return scale, scale * zero

    def fit_both(self, scale: Floats, minimum: Floats, not_negative: bool) -> tuple[Floats, Floats]:
        """The best scale and minimum; those given where all codes are equal."""
        det = self.h * self.qq - self.q * self.q
        ok = det > TINY
        safe = np.where(ok, det, np.float32(1))
        fitted = np.where(ok, (self.h * self.xq - self.x * self.q) / safe, scale)
        offset = np.where(ok, (self.q * self.xq - self.qq * self.x) / safe, minimum)
        if not_negative:
            alone = self.xq / np.maximum(self.qq, TINY)
            fitted = np.where(offset < 0, alone, fitted)
            offset = np.maximum(offset, np.float32(0))
        return fitted, offset

    def error(self, scale: Floats, minimum: Floats) -> Floats:
        """The squared error that scale and minimum leave."""
        squares = scale * scale * self.qq + minimum * minimum * self.h + self.xx
        mixed = scale * self.xq - minimum * self.x + scale * minimum * self.q
        error: Floats = squares - 2 * mixed
        return error


def inverse_of(scales: Floats) -> Floats:
    """1 / scale, and 0 for a scale of 0 or one too small to divide by."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scales
    inverse[~np.isfinite(inverse)] = 0
    return inverse
