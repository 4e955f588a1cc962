"""What is known of a matrix's inputs: their second moment, and how far they drifted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lanewise_quantizer.coded import CodedType, Map
from lanewise_quantizer.fit.hessian import BLOCK, DAMPING, Hessian
from lanewise_quantizer.planes import chained

Floats = npt.NDArray[np.float32]

# The share of H that goes to its diagonal: what inputs have in common in one text they have less
# in common in another (measured: guide/decisions/calibration-for-other-texts.md).
APART = np.float32(0.6)
# What a matrix may be asked to make up for of the hidden states' own drift, as a multiple of what
# it adds to them: the first tokens of a text have states so large that all else would be lost.
MOST = np.float32(1)
TINY = np.float32(1e-30)


@dataclass(frozen=True, eq=False)
class Moment:
    """Sums over tokens for a matrix of inputs x, each token by the weight 1 / (x . x).

    A few tokens, above all the first of a text, have inputs a thousand times larger than others;
    unweighed they would be all that is in the sum. What is quantized before the matrix makes its
    inputs x differ from those that the unquantized model has there, y. Where the outputs of a
    matrix W are added to the hidden states, these have drifted as well: by r, of which
    :func:`bounded` is kept, and nothing where a norm is between, whose results are of another size
    than what W gives. What its outputs miss, W (y - x) + r, is then summed at once, a product of
    the size of W where the inputs' own drift would be one of inputs by inputs.
    """

    sum: Floats  # [inputs, inputs]: sum of x x^T / (x . x)
    tokens: int
    drift: Floats | None = None  # [inputs, inputs]: sum of (y - x) x^T / (x . x); None: y is x
    missing: Floats | None = None  # [outputs, inputs]: sum of (W (y - x) + r) x^T / (x . x)
    _hessians: dict[tuple[float, int, bool], Hessian] = field(default_factory=dict)

    def mean(self) -> Floats:
        """The mean per token."""
        return self.sum / np.float32(self.tokens)

    def apart(self) -> Floats:
        """The sum with a share of it moved to the diagonal."""
        mixed = self.sum * (1 - APART)
        mixed[np.diag_indices(len(mixed))] = np.diag(self.sum)
        return mixed

    def hessian(self, kind: CodedType, damping: float = DAMPING) -> Hessian:
        """See :meth:`Hessian.of`; matrices that share their inputs share what is computed here."""
        key = damping, kind.group, kind.map is Map.TRELLIS
        if key not in self._hessians:
            self._hessians[key] = Hessian.of(self.apart(), kind, damping)
        return self._hessians[key]

    def corrected(self, weights: Floats, kind: CodedType, damping: float = DAMPING) -> Floats:
        """The weights [outputs, inputs] that give on x what ``weights`` W give on y, and r.

        They are the least of sum |W y + r - Q x|^2 / (x . x), with the diagonal's share and the
        damping pulling Q to W: W + (1 - APART) (W drift, or missing) H^-1, H the sum as
        :meth:`hessian` has it, which is a multiple of the mean.
        """
        if self.missing is not None:
            moved = self.missing
        elif self.drift is not None:
            moved = weights @ self.drift
        else:
            return weights
        hessian = self.hessian(kind, damping)
        rows, cols = weights.shape
        share = (1 - APART) / (np.diag(self.sum).mean(dtype=np.float64) or 1.0)
        padded = np.zeros((rows, len(hessian.h)), np.float32)
        padded[:, :cols] = chained(moved) if kind.map is Map.TRELLIS else moved
        padded *= np.float32(share)
        found = hessian.divide(padded)[:, :cols]
        return weights + (chained(found) if kind.map is Map.TRELLIS else found)


class Moments:
    """Collects a moment from inputs, part after part."""

    def __init__(self, inputs: int, drifts: bool, outputs: int = 0) -> None:
        """``outputs``: of a matrix whose outputs' own drift is what is collected; 0: inputs'."""
        self.sum = np.zeros((inputs, inputs), np.float32)
        self.drift = np.zeros((inputs, inputs), np.float32) if drifts and not outputs else None
        self.missing = np.zeros((outputs, inputs), np.float32) if drifts and outputs else None
        self.tokens = 0

    def add(
        self, x: Floats, unquantized: Floats | None = None, missing: Floats | None = None
    ) -> None:
        """Add inputs x [..., inputs], and those of the unquantized model in the same places or, if
        they are collected, what outputs miss there [..., outputs]."""
        rows = x.reshape(-1, x.shape[-1])
        size = np.square(rows).sum(axis=1, keepdims=True)
        scale = 1 / np.sqrt(np.maximum(size, TINY))
        scaled = rows * scale
        for at in range(0, len(self.sum), BLOCK):  # at and above the diagonal
            self.sum[at : at + BLOCK, at:] += scaled[:, at : at + BLOCK].T @ scaled[:, at:]
        if unquantized is not None and self.drift is not None:
            self.drift += ((unquantized.reshape(rows.shape) - rows) * scale).T @ scaled
        if missing is not None and self.missing is not None:
            self.missing += (missing.reshape(len(rows), -1) * scale).T @ scaled
        self.tokens += len(rows)

    def found(self) -> Moment:
        """The moment of what was added."""
        for at in range(0, len(self.sum), BLOCK):
            end = at + BLOCK
            self.sum[end:, at:end] = self.sum[at:end, end:].T
        return Moment(self.sum, self.tokens, self.drift, self.missing)


def bounded(behind: Floats, added: Floats) -> Floats:
    """What hidden states are behind [..., hidden], no token's more than MOST times as long as what
    the unquantized matrix adds to it."""
    most = MOST * np.sqrt(np.square(added).sum(axis=-1, keepdims=True))
    size = np.sqrt(np.square(behind).sum(axis=-1, keepdims=True))
    kept: Floats = behind * np.minimum(np.float32(1), most / np.maximum(size, TINY))
    return kept


def moment_of(x: Floats, unquantized: Floats | None = None) -> Moment:
    """The moment of inputs x [..., inputs], all at once; see :meth:`Moments.add`."""
    moments = Moments(x.shape[-1], drifts=unquantized is not None)
    moments.add(x, unquantized)
    return moments.found()


def looked_up_too(head: Moment) -> Moment:
    """The moment for a tied embedding: of the head's inputs, and of tokens looked up, where every
    input counts alike, with as much weight."""
    size = len(head.sum)
    equal = np.eye(size, dtype=np.float32) * (np.trace(head.sum) / np.float32(size))
    return Moment(head.sum + equal, head.tokens)
