"""Quantizes a matrix for least error of its outputs: error feedback, then rounds of improvement.

The loss of a row w coded as q is (w - q) H (w - q)^T, where H is the mean of x x^T over inputs x.
With H = V V^T, V upper triangular, it is a sum of squares that can be taken input by input, each
one's target moved by the errors before it (LDLQ, the same as GPTQ). Within a group this is done for
every candidate of scale and codebook, so that these are chosen by the loss itself.

A round of improvement goes through the groups again, each with all others held: the loss is then
that of the group alone, with the block of H on the diagonal and a target that the others' errors
move. A change is taken only if the loss falls.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lanewise.runtime.fitting import fit
from lanewise_quantizer import coded
from lanewise_quantizer.coded import CodedMatrix, CodedType
from lanewise_quantizer.fit.first_pass import FirstPass
from lanewise_quantizer.fit.grid import Stored
from lanewise_quantizer.fit.group import Book, Encode
from lanewise_quantizer.fit.hessian import Hessian
from lanewise_quantizer.fit.rounds import improve
from lanewise_quantizer.fit.source import slab_rows
from lanewise_quantizer.planes import chained
from lanewise_quantizer.quantize import join_rows

Floats = npt.NDArray[np.float32]

ROUNDS = 3
SMALL_MODEL = 400_000_000  # weights, up to which all rounds take minutes


def rounds_for(weights: int) -> int:
    """Return the rounds worth their time in a model of so many weights.

    The first round gains most, and each takes as long as the first pass.
    """
    return ROUNDS if weights <= SMALL_MODEL else 1


def quantize_with_feedback(
    weights: Floats,
    kind: CodedType,
    hessian: Hessian,
    table: npt.NDArray[np.int8] | None = None,
    rounds: int = ROUNDS,
    encode: Encode = fit,
) -> CodedMatrix:
    """Quantize weights [rows, cols] with the Hessian for this type."""
    rows = slab_rows(weights.shape[1])  # which are independent
    parts = [
        _slab(weights[at : at + rows], kind, hessian, table, rounds, encode)
        for at in range(0, len(weights), rows)
    ]
    return join_rows(parts)


def quantize_by_importance(
    weights: Floats,
    kind: CodedType,
    importance: Floats | None,
    table: npt.NDArray[np.int8] | None = None,
    encode: Encode = fit,
) -> CodedMatrix:
    """Quantize weights [rows, cols] with each input's error weighed by importance [cols]."""
    size = -(-weights.shape[1] // kind.group) * kind.group
    known = np.ones(weights.shape[1], np.float32) if importance is None else importance
    d = np.zeros(size, np.float32)
    d[: len(known)] = known / max(float(known.mean(dtype=np.float64)), 1e-30)
    d += np.float32(1e-4)
    if kind.map is coded.Map.TRELLIS:
        d = chained(d)
    hessian = Hessian(np.empty((0, 0), np.float32), np.empty((0, 0), np.float32), d)
    return quantize_with_feedback(weights, kind, hessian, table, 0, encode)


def _slab(
    weights: Floats,
    kind: CodedType,
    hessian: Hessian,
    table: npt.NDArray[np.int8] | None,
    rounds: int,
    encode: Encode,
) -> CodedMatrix:
    cols = weights.shape[1]
    stored = Stored(kind, len(weights), cols, table)
    wanted = np.zeros(stored.codes.shape, np.float32)
    wanted[:cols] = (chained(weights) if kind.map is coded.Map.TRELLIS else weights).T
    state = FirstPass(kind, Book(kind, table), hessian, wanted, stored, encode)
    state.run()
    for _ in range(rounds):
        improve(state)
    return state.finish()
