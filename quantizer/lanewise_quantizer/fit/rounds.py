"""Rounds of improvement: each group again, all others held (see feedback.py)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from lanewise.runtime.fitting import Candidates
from lanewise_quantizer import coded
from lanewise_quantizer.coded import SEGMENT
from lanewise_quantizer.fit.first_pass import FirstPass
from lanewise_quantizer.fit.group import Choice, GroupFitter, Metric
from lanewise_quantizer.fit.hessian import factor

Floats = npt.NDArray[np.float32]

# Inputs whose rows of H meet all errors in one product, a multiple of every group: with the rows
# of one group at a time all errors would be read again for each.
BLOCK_INPUTS = 512


def improve(state: FirstPass) -> None:
    """One round over all groups; a trellis is gone through segment by segment."""
    errors = state.wanted - state.values
    size = SEGMENT if state.kind.map is coded.Map.TRELLIS else state.kind.group
    for begin in range(0, len(errors), BLOCK_INPUTS):
        block = slice(begin, min(begin + BLOCK_INPUTS, len(errors)))
        before, pulls = errors[block].copy(), state.hessian.h[block] @ errors
        for first in range(block.start, block.stop, size):
            span = slice(first, min(first + size, block.stop))
            changed = slice(block.start, first)
            pull = pulls[first - begin : span.stop - begin]
            pull += state.hessian.h[span, changed] @ (errors[changed] - before[: first - begin])
            _improve_span(state, span, pull, errors)


def _improve_span(state: FirstPass, span: slice, pull: Floats, errors: Floats) -> None:
    targets, metric = held(state, span, pull - state.hessian.h[span, span] @ errors[span])
    before = metric.loss(targets - state.values[span])
    if state.kind.map is coded.Map.TRELLIS:
        _segment(state, span, targets, metric, before)
    else:
        _group(state, span, targets, metric, before)
    errors[span] = state.wanted[span] - state.values[span]


def held(state: FirstPass, span: slice, pull: Floats) -> tuple[Floats, Metric]:
    """The targets and the loss of some inputs while all others keep their errors, whose product
    with H is ``pull``."""
    block = state.hessian.h[span, span].astype(np.float64)
    targets = state.wanted[span] + np.linalg.inv(block).astype(np.float32) @ pull
    return np.ascontiguousarray(targets), Metric.factored(*factor(block))


def _group(state: FirstPass, span: slice, targets: Floats, metric: Metric, before: Floats) -> None:
    stored, g = state.stored, span.start // state.kind.group
    fitter = GroupFitter(state.book, state.grid(span.start), state.encode)
    states = np.zeros(state.rows, np.uint8)
    lows = None if stored.minimums is None else stored.minimums[g]
    tried = fitter.around(stored.scales[g], lows, stored.selectors[g])
    best = fitter.evaluate(targets, metric, states, tried)
    best = best.better_of(fitter.refine(targets, metric, states, best))
    if len(state.book.peaks) > 1:
        others = _other_books(fitter, stored.scales[g], stored.selectors[g])
        best = best.better_of(fitter.evaluate(targets, metric, states, others))
    best = replace(best, losses=metric.loss(targets - best.values))
    kept = Choice(
        stored.codes[span], state.values[span], stored.scales[g], lows, stored.selectors[g], before
    )
    state.keep(span, kept.better_of(best))


def _other_books(
    fitter: GroupFitter, scales: Floats, selectors: npt.NDArray[np.uint8]
) -> Candidates:
    """Every codebook, with either sign, at the scale that gives it the same width."""
    peaks = np.array(fitter.book.peaks, np.float32)
    width = np.abs(scales) * peaks[selectors]
    assert fitter.grid is not None
    tried = [(n, sign) for n in range(len(peaks)) for sign in (np.float32(1), np.float32(-1))]
    wanted = np.stack([width * (sign / peaks[n]) for n, sign in tried])
    numbers = np.stack([np.full(len(scales), n, np.uint8) for n, _ in tried])
    return Candidates(fitter.grid.scales(wanted)[:, None], None, numbers)


def _segment(
    state: FirstPass, span: slice, targets: Floats, metric: Metric, before: Floats
) -> None:
    """A trellis's segment at once: codes, then scales for these codes, then codes again."""
    stored, group = state.stored, state.kind.group
    first, last = span.start // group, -(-span.stop // group)
    grid = state.grid(span.start)
    zeros = np.zeros(state.rows, np.uint8)
    scales = stored.scales[first:last]
    for _ in range(2):
        found = state.encode(
            state.book.levels,
            targets,
            metric.weights,
            metric.feedback,
            Candidates(np.ascontiguousarray(scales[None])),
            None,
        )
        levels = state.book.mapped(found.codes, zeros, zeros)
        values = levels * np.repeat(scales, group, axis=0)
        losses = metric.loss(targets - values)
        better = losses < before
        stored.scales[first:last] = np.where(better, scales, stored.scales[first:last])
        stored.codes[span] = np.where(better, found.codes, stored.codes[span])
        state.values[span] = np.where(better, values, state.values[span])
        before = np.where(better, losses, before)
        scales = grid.scales(_scales_for(levels, targets, metric, group))


def _scales_for(levels: Floats, targets: Floats, metric: Metric, group: int) -> Floats:
    """The scales [groups, rows] of least loss for given levels [inputs, rows]."""
    parts = [
        metric.whiten[at : at + group].T @ levels[at : at + group]
        for at in range(0, len(levels), group)
    ]
    target = metric.whiten.T @ targets
    gram = np.empty((levels.shape[1], len(parts), len(parts)))
    for g, part in enumerate(parts):
        for k in range(g + 1):  # pair by pair: sums over whole rows of memory
            gram[:, g, k] = gram[:, k, g] = np.einsum("ir,ir->r", part, parts[k])
    wanted = np.stack([np.einsum("ir,ir->r", part, target) for part in parts], axis=1)
    ridge = 1e-6 * np.trace(gram, axis1=1, axis2=2)[:, None, None] + 1e-30
    gram += ridge * np.eye(len(parts))
    found: Floats = np.linalg.solve(gram, wanted[:, :, None].astype(np.float64))[:, :, 0].T
    return found.astype(np.float32)
