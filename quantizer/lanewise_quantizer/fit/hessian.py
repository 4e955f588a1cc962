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

    def divide(self, rows: Floats) -> Floats:
        """Rows [n, inputs] @ H^-1, in the order of ``h``, by substitution in its factors."""
        found = rows.copy()
        blocks = [slice(at, min(at + BLOCK, len(self.h))) for at in range(0, len(self.h), BLOCK)]
        corners = [np.linalg.inv(self.unit[b, b].astype(np.float64)) for b in blocks]
        inverses = [corner.astype(np.float32) for corner in corners]
        for block, inverse in zip(reversed(blocks), reversed(inverses), strict=True):
            after = slice(block.stop, None)
            rest = found[:, block] - found[:, after] @ self.unit[block, after].T
            found[:, block] = rest @ inverse.T
        found /= self.weights
        for block, inverse in zip(blocks, inverses, strict=True):
            before = slice(0, block.start)
            rest = found[:, block] - found[:, before] @ self.unit[before, block]
            found[:, block] = rest @ inverse
        return found


def factor(h: npt.NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Unit upper triangular U and d > 0 with h = U @ diag(d) @ U.T; h is read above its diagonal.

    A block of columns after the other from the last: blocks themselves are factored in float64,
    what others take off them is a product of float32, as h is. No other array of its size is held.
    """
    size = len(h)
    unit, weights = np.zeros((size, size), np.float32), np.empty(size, np.float32)
    for end in range(size, 0, -BLOCK):
        block, after = slice(max(0, end - BLOCK), end), slice(end, None)
        rest = h[:end, block] - unit[:end, after] @ (unit[block, after] * weights[after]).T
        turned = rest[block].astype(np.float64)[::-1, ::-1]
        corner = np.linalg.cholesky(turned)[::-1, ::-1]
        root = np.diag(corner)
        weights[block] = np.square(root)
        unit[block, block] = corner / root
        divisor = (np.linalg.inv(corner).T / root).astype(np.float32)
        unit[: block.start, block] = rest[: block.start] @ divisor
    return unit, weights
