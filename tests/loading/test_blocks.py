"""The weights of blocks are those that the gguf package takes out of them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from lanewise.loading.base.blocks import LAYOUTS, q8_rows, weights_of
from lanewise.loading.base.formats import TensorType
from unsplit_latent import blocks_like


@pytest.mark.parametrize("kind", LAYOUTS, ids=lambda kind: kind.name)
def test_weights_of_blocks(kind: TensorType) -> None:
    public = gguf.GGMLQuantizationType(int(kind))
    like = np.random.default_rng(1).normal(size=(7, 768)).astype(np.float32)
    rows = blocks_like(like, public, 5)
    found = weights_of(kind, rows)
    assert (found.dtype, found.shape) == (np.float32, like.shape)
    assert np.array_equal(found, gguf.dequantize(rows, public))
    assert found.std() == pytest.approx(1, rel=0.1)


def test_rows_of_q8_0() -> None:
    rng = np.random.default_rng(2)
    weights = rng.normal(size=(9, 96)).astype(np.float32) * np.exp(rng.normal(size=(9, 1)) * 4)
    weights[0, :32] = 0
    weights[2, :32] = np.arange(32) * 4 - 63.5  # halves
    weights[2, 31] = 127
    weights = weights.astype(np.float32)
    assert np.array_equal(q8_rows(weights), gguf.quantize(weights, gguf.GGMLQuantizationType.Q8_0))


def test_scales_that_are_too_small_or_none() -> None:
    weights = np.full((3, 32), 1e-42, np.float32)
    weights[1, 5], weights[2, 7] = np.inf, np.nan
    rows = q8_rows(weights)
    assert not rows[0].any()
    assert not np.isfinite(rows[1:, :2].copy().view(np.float16)).any()
