"""Decodes GGUF's blocks of integers to float weights, and encodes weights as Q8_0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.formats import BLOCKS, TensorType

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Fields = Mapping[str, Array]  # arrays [blocks, elements] by field name

GROUP = 32  # weights in a block of Q8_0
CODES_IQ4 = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8
)
_D, _M = ("d", "<f2", 1), ("m", "<f2", 1)
_LOW, _K_SCALES = ("low", "u1", 128), ("scales", "u1", 12)
# The fields of a block in order: name, numpy type, elements.
LAYOUTS: Mapping[TensorType, tuple[tuple[str, str, int], ...]] = {
    TensorType.Q4_0: (_D, ("low", "u1", 16)),
    TensorType.Q4_1: (_D, _M, ("low", "u1", 16)),
    TensorType.Q5_0: (_D, ("high", "u1", 4), ("low", "u1", 16)),
    TensorType.Q5_1: (_D, _M, ("high", "u1", 4), ("low", "u1", 16)),
    TensorType.Q8_0: (_D, ("codes", "i1", 32)),
    TensorType.Q2_K: (("scales", "u1", 16), ("low", "u1", 64), _D, _M),
    TensorType.Q3_K: (("high", "u1", 32), ("low", "u1", 64), _K_SCALES, _D),
    TensorType.Q4_K: (_D, _M, _K_SCALES, _LOW),
    TensorType.Q5_K: (_D, _M, _K_SCALES, ("high", "u1", 32), _LOW),
    TensorType.Q6_K: (_LOW, ("high", "u1", 64), ("scales", "i1", 16), _D),
    TensorType.IQ4_NL: (_D, ("low", "u1", 16)),
    TensorType.IQ4_XS: (_D, ("scales_high", "<u2", 1), ("scales_low", "u1", 4), _LOW),
}


def weights_of(kind: TensorType, rows: Bytes) -> Floats:
    """Return the weights [rows, inputs] of rows [rows, bytes] in a type of LAYOUTS."""
    layout = np.dtype([(name, form, (n,)) for name, form, n in LAYOUTS[kind]])
    blocks = np.ascontiguousarray(rows).view(layout).reshape(-1)
    codes, scales, minimums = _PARTS[kind]({name: blocks[name] for name, _, _ in LAYOUTS[kind]})
    groups = codes.reshape(len(blocks), scales.shape[1], -1).astype(np.float32)
    weights: Floats = groups * scales.astype(np.float32)[:, :, None]
    if minimums is not None:
        weights += minimums.astype(np.float32)[:, :, None]
    return weights.reshape(len(rows), len(blocks) // len(rows) * BLOCKS[kind].weights)


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
    """Return codes of ``bits`` bits: the lowest bits of ``width`` bytes, then the next, etc."""
    parts = data.reshape(len(data), -1, 1, width)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes: Bytes = parts >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(len(data), -1)


Parts = tuple[Array, Array, Array | None]  # of blocks, by group: codes, scales, addends


def _four(f: Fields) -> Parts:
    return _spread(f["low"], 4, 16).astype(np.int8) - np.int8(8), f["d"], None


def _four_and_minimum(f: Fields) -> Parts:
    return _spread(f["low"], 4, 16), f["d"], f["m"]


def _five(f: Fields) -> Parts:
    # Bit i of the high field belongs to input i.
    codes = _spread(f["low"], 4, 16) | _spread(f["high"], 1, 1) << np.uint8(4)
    return codes.astype(np.int8) - np.int8(16), f["d"], None


def _five_and_minimum(f: Fields) -> Parts:
    return _spread(f["low"], 4, 16) | _spread(f["high"], 1, 1) << np.uint8(4), f["d"], f["m"]


def _eight(f: Fields) -> Parts:
    return f["codes"], f["d"], None


def _two_k(f: Fields) -> Parts:
    scales = f["d"].astype(np.float32) * (f["scales"] & np.uint8(15))
    minimums = f["m"].astype(np.float32) * (f["scales"] >> np.uint8(4))
    return _spread(f["low"], 2, 32), scales, -minimums


def _three_k(f: Fields) -> Parts:
    codes = _spread(f["low"], 2, 32) | _spread(f["high"], 1, 32) << np.uint8(2)
    packed = f["scales"]
    low, high = _spread(packed[:, :8], 4, 8), _spread(packed[:, 8:], 2, 4)
    numbers = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
    return codes.astype(np.int8) - np.int8(4), f["d"].astype(np.float32) * numbers, None


def _k_scales(f: Fields) -> tuple[Floats, Floats]:
    """Return eight scales and eight minimums, which are 6 bits each in twelve bytes."""
    first, second, both = (f["scales"][:, i : i + 4] for i in (0, 4, 8))
    numbers = np.concatenate([first & 63, both & 15 | first >> 6 << 4], axis=1)
    minimums = np.concatenate([second & 63, both >> 4 | second >> 6 << 4], axis=1)
    return f["d"].astype(np.float32) * numbers, -(f["m"].astype(np.float32) * minimums)


def _four_k(f: Fields) -> Parts:
    return _spread(f["low"], 4, 32), *_k_scales(f)


def _five_k(f: Fields) -> Parts:
    codes = _spread(f["low"], 4, 32) | _spread(f["high"], 1, 32) << np.uint8(4)
    return codes, *_k_scales(f)


def _six_k(f: Fields) -> Parts:
    codes = _spread(f["low"], 4, 64) | _spread(f["high"], 2, 32) << np.uint8(4)
    return codes.astype(np.int8) - np.int8(32), f["d"].astype(np.float32) * f["scales"], None


def _iq4(f: Fields) -> Parts:
    return CODES_IQ4[_spread(f["low"], 4, 16)], f["d"], None


def _iq4_xs(f: Fields) -> Parts:
    high = f["scales_high"] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    numbers = _spread(f["scales_low"], 4, 1) | high.astype(np.uint8) << np.uint8(4)
    scales = f["d"].astype(np.float32) * (numbers.astype(np.int8) - np.int8(32))
    return CODES_IQ4[_spread(f["low"], 4, 16)], scales, None


_PARTS: Mapping[TensorType, Callable[[Fields], Parts]] = {
    TensorType.Q4_0: _four,
    TensorType.Q4_1: _four_and_minimum,
    TensorType.Q5_0: _five,
    TensorType.Q5_1: _five_and_minimum,
    TensorType.Q8_0: _eight,
    TensorType.Q2_K: _two_k,
    TensorType.Q3_K: _three_k,
    TensorType.Q4_K: _four_k,
    TensorType.Q5_K: _five_k,
    TensorType.Q6_K: _six_k,
    TensorType.IQ4_NL: _iq4,
    TensorType.IQ4_XS: _iq4_xs,
}
