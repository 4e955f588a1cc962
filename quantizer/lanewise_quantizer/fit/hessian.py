"""The quadratic form of a matrix's output error, and its factors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

DAMPING = 0.01  # of the mean of H's diagonal, added to it


@dataclass(frozen=True)
class Hessian:
    """H [inputs, inputs] with damping, and H = unit @ diag(weights) @ unit.T."""

    h: Floats
    unit: Floats
    weights: Floats

    @staticmethod
    def of(moment: Floats, damping: float = DAMPING, multiple: int = 1) -> Hessian:
        """From the mean of x x^T; inputs are filled up to a multiple with ones that are 0."""
        size = len(moment)
        missing = -size % multiple
        h = np.pad(moment, ((0, missing), (0, missing))).astype(np.float64)
        mean = float(np.diag(moment).mean(dtype=np.float64)) or 1.0
        h /= mean
        h[np.diag_indices_from(h)] += damping
        unit, weights = factor(h)
        return Hessian(h.astype(np.float32), unit, weights)


def factor(h: npt.NDArray[np.floating]) -> tuple[Floats, Floats]:
    """Unit upper triangular U and d > 0 with h = U @ diag(d) @ U.T."""
    v = np.linalg.cholesky(h[::-1, ::-1])[::-1, ::-1]
    d = np.diag(v)
    return (v / d).astype(np.float32), np.square(d).astype(np.float32)
