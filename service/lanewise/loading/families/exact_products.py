"""Products of matrices that have the same bits on every machine, whatever adds them up.

A library for matrices adds in an order of its own. Sums of integers below 2**53 are exact in
float64 in any order, so each row becomes integers of 24 bits, which are multiplied in two parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BITS, HALF = 24, 12  # of an integer, of its lower part
MOST_INPUTS = 1 << 12  # so that sums of products of 36 bits have 48
Doubles = npt.NDArray[np.float64]


def exact_product(rows: npt.NDArray[Any], matrix: npt.NDArray[Any]) -> Doubles:
    """Return rows [n][inputs] times matrix [outputs][inputs], rounded to 24 bits of each first.

    ValueError for more than 4096 inputs.
    """
    if rows.shape[1] > MOST_INPUTS:
        raise ValueError(f"{rows.shape[1]} inputs; accepted: at most {MOST_INPUTS}")
    (x, of_x), (w, of_w) = _integers(rows), _integers(matrix)
    high = np.floor(x / (1 << HALF))
    low = x - high * (1 << HALF)
    sums = (high @ w.T).astype(np.int64) * (1 << HALF) + (low @ w.T).astype(np.int64)
    return np.asarray(np.ldexp(sums.astype(np.float64), of_x[:, None] + of_w[None, :]))


def exact_layernorm(
    rows: npt.NDArray[Any], weight: npt.NDArray[Any], bias: npt.NDArray[Any], eps: float
) -> Doubles:
    """Return LayerNorm of each row, of values rounded to 24 bits of the row's largest."""
    x, exponents = _integers(rows)
    whole, n = x.astype(np.int64), rows.shape[1]
    sums, squares = whole.sum(axis=1), (whole * whole).sum(axis=1)
    deviation = [
        (n * int(square) - int(total) ** 2) / n**2
        for total, square in zip(sums, squares, strict=True)
    ]
    variance = np.ldexp(np.array(deviation), 2 * exponents)
    centred = np.ldexp(x - (sums / n)[:, None], exponents[:, None])
    return np.asarray(centred / np.sqrt(variance + eps)[:, None] * weight + bias)


def _integers(rows: npt.NDArray[Any]) -> tuple[Doubles, npt.NDArray[np.int32]]:
    """Return each row as integers, and the exponent that they are multiplied by."""
    values = rows.astype(np.float64)
    _, exponents = np.frexp(np.abs(values).max(axis=1))
    shift = BITS - exponents
    return np.rint(np.ldexp(values, shift[:, None])), -shift
