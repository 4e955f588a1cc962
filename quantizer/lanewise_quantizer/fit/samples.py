"""A sample of a model's groups, the same number from every matrix, to fit tables to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Role
from lanewise_quantizer.fit.experts import STACKED
from lanewise_quantizer.fit.layer import matrices_of
from lanewise_quantizer.fit.recurrence import KEPT
from lanewise_quantizer.fit.source import Source

Floats = npt.NDArray[np.float32]

GROUP = 32
LARGEST_SAMPLE = 200_000
PLACES = 8  # groups of inputs that are sampled of one matrix, each in many rows


@dataclass(frozen=True)
class Sample:
    """Some rows' weights of one group of inputs [32, rows], and the weight of each input's error.

    The errors of one matrix, as a share of its own size, count as much as another's.
    """

    layer: int
    weights: Floats
    importance: Floats


def sample_groups(
    source: Source,
    importance: Mapping[tuple[Role, int], Floats] | None = None,
    count: int = LARGEST_SAMPLE,
    seed: int = 0,
) -> list[Sample]:
    """About ``count`` groups; ``importance`` is the mean squared input [inputs] of each matrix."""
    rng = np.random.default_rng(seed)
    matrices = [
        (role, layer)
        for layer in range(source.config.n_layers)
        for role in matrices_of(source.config, layer)
        if role not in (Role.ROUTER, *KEPT)
    ]
    share = max(1, count // len(matrices))
    samples = []
    for role, layer in matrices:
        if role in STACKED:
            w = source.expert(role, layer, int(rng.integers(source.n_experts(layer))))
        else:
            w = source(role, layer)
        h = np.ones(w.shape[1], np.float32)
        if importance is not None:
            h = importance[role, layer] / np.float32(importance[role, layer].mean())
        size = float(np.mean(np.square(w) * h, dtype=np.float64)) or 1.0
        rows = min(len(w), -(-share // PLACES))
        places = min(w.shape[1] // GROUP, max(1, share // rows))
        for place in rng.choice(w.shape[1] // GROUP, places, replace=False):
            span = slice(place * GROUP, (place + 1) * GROUP)
            picked = rng.choice(len(w), rows, replace=False)
            part = np.ascontiguousarray(w[picked, span].T)
            samples.append(Sample(layer, part, (h[span] / size).astype(np.float32)))
    return samples
