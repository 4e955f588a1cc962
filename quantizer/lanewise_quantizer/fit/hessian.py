"""The quadratic form of a matrix's output error, and its factors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanewise_quantizer.coded import CodedType, Map
from lanewise_quantizer.planes import chained

Floats = npt.NDArray[np.float32]

DAMPING = 0.01  # of the mean of H's diagonal, added to it
BLOCK = 512  # columns factored at a time


@dataclass(frozen=True)
class Hessian:
    """H [inputs, inputs] with damping, and H = unit @ diag(weights) @ unit.T.

    Inputs are in the order in which a type's codes are found.
    """

    h: Floats
    unit: Floats
    weights: Floats

    @staticmethod
    def of(moment: Floats, kind: CodedType, damping: float = DAMPING) -> Hessian:
        """From a multiple of the mean of x x^T; inputs are filled up with ones that are 0."""
        size, mean = len(moment), np.diag(moment).mean(dtype=np.float64) or 1.0
        full = size + -size % kind.group
        if kind.map is Map.TRELLIS:
            moment = chained(chained(moment).T)
        h = np.zeros((full, full), np.float32)
        np.multiply(moment, np.float32(1 / mean), out=h[:size, :size])
        h[np.diag_indices(full)] += np.float32(damping)
        return Hessian(h, *factor(h))


def factor(h: npt.NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Unit upper triangular U and d > 0 with h = U @ diag(d) @ U.T; h is read above its diagonal.

    Computed in float64, a block of columns after the other from the last: one array of that type
    is all that is held, where a library's factorization needs several.
    """
    size = len(h)
    v = np.zeros((size, size))
    unit, d = np.zeros((size, size), np.float32), np.empty(size)
    for end in range(size, 0, -BLOCK):
        block = slice(max(0, end - BLOCK), end)
        rest = h[:end, block].astype(np.float64)
        rest -= v[:end, end:] @ v[block, end:].T
        corner = np.linalg.cholesky(rest[block][::-1, ::-1])[::-1, ::-1]
        v[: block.start, block] = rest[: block.start] @ np.linalg.inv(corner).T
        v[block, block] = corner
        d[block] = np.diag(corner)
        unit[:end, block] = v[:end, block] / d[block]
    return unit, np.square(d).astype(np.float32)
