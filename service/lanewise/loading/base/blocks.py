"""How GGUF's blocks of integers are laid out, the weights they stand for, and rows of Q8_0.

The order of codes within a block follows one rule: ``width`` bytes hold the lowest bits of the
first ``width`` inputs, above them the bits of the next, and so on; then come the next bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.formats import TensorType

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

GROUP = 32  # weights in a block of Q8_0
IQ4_NL_TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@dataclass(frozen=True)
class Layout:
    """A block: its fields in order, and the bits of a code with the width of their bytes."""

    fields: tuple[tuple[str, str, int], ...]  # name, numpy type, elements
    low: tuple[int, int]  # bits, width
    high: tuple[int, int] = (0, 0)
    zero: int = 0  # the code of no weight; codes of eight bits are signed

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of a block."""
        return np.dtype([(name, form, (n,)) for name, form, n in self.fields])

    @property
    def inputs(self) -> int:
        """The weights of a block."""
        return next(n for name, _, n in self.fields if name == "low") * 8 // self.low[0]

    def codes(self, blocks: Array) -> Bytes:
        """Return the codes [..., inputs] of blocks [...]."""
        codes = _spread(blocks["low"], *self.low)
        if self.high[0]:
            codes |= _spread(blocks["high"], *self.high) << np.uint8(self.low[0])
        return codes


_D, _M = ("d", "<f2", 1), ("m", "<f2", 1)
_SMALL, _LOW, _HIGH = ("low", "u1", 16), ("low", "u1", 128), ("high", "u1", 32)
_K_SCALES = ("scales", "u1", 12)
_XS = (_D, ("scales_high", "<u2", 1), ("scales_low", "u1", 4), _LOW)
LAYOUTS: Mapping[TensorType, Layout] = {
    TensorType.Q4_0: Layout((_D, _SMALL), (4, 16), zero=8),
    TensorType.Q4_1: Layout((_D, _M, _SMALL), (4, 16)),
    TensorType.Q5_0: Layout((_D, ("high", "u1", 4), _SMALL), (4, 16), (1, 1), 16),
    TensorType.Q5_1: Layout((_D, _M, ("high", "u1", 4), _SMALL), (4, 16), (1, 1)),
    TensorType.Q8_0: Layout((_D, ("low", "u1", 32)), (8, 32)),
    TensorType.Q2_K: Layout((("scales", "u1", 16), ("low", "u1", 64), _D, _M), (2, 32)),
    TensorType.Q3_K: Layout((_HIGH, ("low", "u1", 64), _K_SCALES, _D), (2, 32), (1, 32), 4),
    TensorType.Q4_K: Layout((_D, _M, _K_SCALES, _LOW), (4, 32)),
    TensorType.Q5_K: Layout((_D, _M, _K_SCALES, _HIGH, _LOW), (4, 32), (1, 32)),
    TensorType.Q6_K: Layout(
        (_LOW, ("high", "u1", 64), ("scales", "i1", 16), _D), (4, 64), (2, 32), 32
    ),
    TensorType.IQ4_NL: Layout((_D, _SMALL), (4, 16)),
    TensorType.IQ4_XS: Layout(_XS, (4, 16)),
}


def weights_of(kind: TensorType, rows: Bytes) -> Floats:
    """Return the weights [rows, inputs] of rows [rows, bytes] in a type of LAYOUTS."""
    layout = LAYOUTS[kind]
    blocks = np.ascontiguousarray(rows).view(layout.dtype)  # [rows, blocks of a row]
    codes = layout.codes(blocks)
    if kind in (TensorType.IQ4_NL, TensorType.IQ4_XS):
        signed = np.array(IQ4_NL_TABLE, np.int8)[codes]
    else:
        signed = (codes - np.uint8(layout.zero)).view(np.int8)
    scales, minimums = numbers_of(kind, blocks)
    factors = blocks["d"].astype(np.float32) * scales
    groups = signed.reshape(*factors.shape, -1).astype(np.float32)
    weights: Floats = groups * factors[..., None]
    if minimums is not None:
        weights -= (blocks["m"].astype(np.float32) * minimums)[..., None]
    return weights.reshape(len(rows), -1)


def q8_rows(weights: Floats) -> Bytes:
    """Return rows of Q8_0 [rows, bytes] for weights [rows, inputs]; inputs is a multiple of GROUP.

    Rounded as the library rounds floats: to nearest, halves away from zero.
    """
    groups = weights.reshape(-1, GROUP)
    scales = np.abs(groups).max(axis=1, keepdims=True) / np.float32(127)
    made = np.empty(len(groups), [("d", "<f2", (1,)), ("codes", "i1", (GROUP,))])
    # NaN or infinity gives a non-finite scale, which the loader refuses.
    with np.errstate(all="ignore"):
        inverse = np.float32(1) / scales
        nearest = (groups * np.where(np.isinf(inverse), 0, inverse)).astype(np.float64)
        made["d"], made["codes"] = scales, np.trunc(nearest + np.copysign(0.5, nearest))
    return made.view(np.uint8).reshape(len(weights), -1)


def _spread(data: Bytes, bits: int, width: int) -> Bytes:
    """Return codes [..., n] of ``bits`` each from bytes [..., n * bits / 8]."""
    parts = data.reshape(*data.shape[:-1], -1, 1, width)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes: Bytes = parts >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(*data.shape[:-1], -1)


_ONE = np.ones(1, np.int8)


def numbers_of(kind: TensorType, blocks: Array) -> tuple[Array, Array | None]:
    """Return what multiplies ``d``, and ``m`` if that is subtracted: [..., groups] each."""
    if kind in (TensorType.Q4_1, TensorType.Q5_1):  # their minimum is added
        return _ONE, -_ONE
    if kind == TensorType.Q2_K:
        return blocks["scales"] & np.uint8(15), blocks["scales"] >> np.uint8(4)
    if kind == TensorType.Q3_K:  # low four bits in the first eight bytes, the others above
        packed = blocks["scales"]
        low, high = _spread(packed[..., :8], 4, 8), _spread(packed[..., 8:], 2, 4)
        return (low | high << np.uint8(4)).view(np.int8) - np.int8(32), None
    if kind in (TensorType.Q4_K, TensorType.Q5_K):  # eight of six bits each, in twelve bytes
        first, second, both = (blocks["scales"][..., i : i + 4] for i in (0, 4, 8))
        scales = np.concatenate([first & 63, both & 15 | first >> 6 << 4], axis=-1)
        return scales.view(np.int8), np.concatenate(
            [second & 63, both >> 4 | second >> 6 << 4], axis=-1
        )
    if kind == TensorType.IQ4_XS:
        upper = blocks["scales_high"] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
        six = _spread(blocks["scales_low"], 4, 1) | upper.astype(np.uint8) << np.uint8(4)
        return six.view(np.int8) - np.int8(32), None
    return (blocks["scales"] if kind == TensorType.Q6_K else _ONE), None
