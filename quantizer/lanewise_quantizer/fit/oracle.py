"""``lw_fit`` in numpy, every operation in the same order: the second opinion of the native code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lanewise.runtime.fitting import Bytes, Candidates, Fit, Floats, Levels, Map
from lanewise_quantizer.scale_search import inverse_of

STATES = 4
MAGIC = np.float32(12582912)  # 1.5 * 2^23: adding it rounds to an integer, halves to even


def fit(
    levels: Levels,
    targets: Floats,
    weights: Floats,
    feedback: Floats | None,
    candidates: Candidates,
    states: Bytes | None = None,
) -> Fit:
    """See ``lanewise.runtime.fitting.fit``."""
    columns, rows = targets.shape
    tried, groups, _ = candidates.scales.shape
    begin = np.zeros(rows, np.uint8) if states is None else states
    best: Fit | None = None
    for number in range(tried):
        scales = np.repeat(candidates.scales[number], columns // groups, axis=0)
        lows = np.zeros_like(scales)
        if candidates.minimums is not None:
            lows = np.repeat(candidates.minimums[number], columns // groups, axis=0)
        selectors = np.zeros(rows, np.uint8)
        if candidates.selectors is not None:
            selectors = candidates.selectors[number]
        if levels.map is Map.TRELLIS:
            found = _trellis(levels, targets, weights, feedback, scales, selectors, begin)
        else:
            found = _nearest(levels, targets, weights, feedback, scales, lows, selectors)
        codes, values, losses = found
        if best is None:
            best = Fit(codes, values, losses, np.zeros(rows, np.uint32))
            continue
        take = losses < best.losses
        best = Fit(
            np.where(take, codes, best.codes),
            np.where(take, values, best.values),
            np.where(take, losses, best.losses),
            np.where(take, np.uint32(number), best.choices),
        )
    assert best is not None
    return best


def _nearest(
    levels: Levels,
    targets: Floats,
    weights: Floats,
    feedback: Floats | None,
    scales: Floats,
    lows: Floats,
    selectors: Bytes,
) -> tuple[Bytes, Floats, Floats]:
    t = targets.copy()
    codes, values = np.empty(t.shape, np.uint8), np.empty_like(t)
    losses = np.zeros(t.shape[1], np.float32)
    inverses = inverse_of(scales)
    for k in range(len(t)):
        at = (t[k] + lows[k]) * inverses[k]
        if levels.map is Map.UNIFORM:
            low, high = np.float32(levels.low), np.float32(levels.high)
            level = (np.minimum(np.maximum(at, low), high) + MAGIC) - MAGIC
            codes[k] = (level - low).astype(np.uint8)
        else:
            assert levels.tables is not None
            middles = (levels.tables[:, 1:] + levels.tables[:, :-1]) * np.float32(0.5)
            codes[k] = (at[:, None] > middles[selectors]).sum(axis=1)
            level = levels.tables[selectors, codes[k]]
        values[k] = level * scales[k] - lows[k]
        residual = t[k] - values[k]
        losses += weights[k] * (residual * residual)
        if feedback is not None:
            t[k + 1 :] -= residual * feedback[k, k + 1 :, None]
    return codes, values, losses


def _trellis(
    levels: Levels,
    targets: Floats,
    weights: Floats,
    feedback: Floats | None,
    scales: Floats,
    selectors: Bytes,
    begin: Bytes,
) -> tuple[Bytes, Floats, Floats]:
    columns, rows = targets.shape
    every = np.arange(rows)
    assert levels.tables is not None
    tables = levels.tables[selectors].T  # [16, rows]
    t = np.repeat(targets[:, None], STATES, axis=1)  # as each state's path has changed them
    losses = np.where(np.arange(STATES)[:, None] == begin, np.float32(0), np.float32(np.inf))
    residuals = np.empty((STATES, rows), np.float32)
    before = np.empty((columns, STATES, rows), np.uint8)
    for k in range(columns):
        values = tables * scales[k]
        news = np.empty_like(losses)
        for c in range(STATES):
            rest = t[k] - values[4 * c : 4 * c + 4]
            sums = losses + weights[k] * (rest * rest)
            before[k, c] = sums.argmin(axis=0)
            residuals[c] = rest[before[k, c], every]
            news[c] = sums[before[k, c], every]
        losses = news
        if feedback is not None:
            inherited = np.stack([t[k + 1 :, before[k, c], every] for c in range(STATES)], axis=1)
            t[k + 1 :] = inherited - residuals * feedback[k, k + 1 :, None, None]
    codes, least = _trace_back(losses, before)
    index = codes << 2 | np.concatenate([begin[None], codes[:-1]])
    return codes, levels.tables[selectors, index] * scales, least


def _trace_back(losses: Floats, before: npt.NDArray[np.uint8]) -> tuple[Bytes, Floats]:
    every = np.arange(losses.shape[1])
    state = losses.argmin(axis=0)
    least = losses[state, every]
    codes = np.empty((len(before), len(every)), np.uint8)
    for k in range(len(before) - 1, -1, -1):
        codes[k] = state
        state = before[k, state, every]
    return codes, least
