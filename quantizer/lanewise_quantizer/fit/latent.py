"""Latent attention (MLA) in float32: of each token one row for all heads.

A head's queries are made as long as such a row by its part of LATENT_KEYS, and what they find is a
sum of rows, of which its part of LATENT_VALUES makes the head's result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Role
from lanewise_quantizer.fit.layer import Vectors, rms

Floats = npt.NDArray[np.float32]
Matrices = Mapping[Role, Floats]


def query_inputs(x: Floats, weights: Matrices, vectors: Vectors) -> Floats:
    """What ATTN_Q is given, for normalized x."""
    kind = vectors.attention
    if not kind.query_rank:
        return x
    norm = vectors.of[Role.LATENT_QUERY_NORM]
    return rms(x @ weights[Role.LATENT_QUERY].T, norm, kind.latent_eps)


def queries(
    x: Floats, weights: Matrices, vectors: Vectors, turn: Callable[[Floats], Floats]
) -> tuple[Floats, Floats]:
    """What heads ask [windows, tokens, heads, ...]: what LATENT_KEYS is given, what has turned."""
    kind = vectors.attention
    product = query_inputs(x, weights, vectors) @ weights[Role.ATTN_Q].T
    heads = product.reshape(*x.shape[:2], kind.n_heads, kind.head_dim)
    still = kind.head_dim - kind.rope_dim
    return heads[..., :still], turn(heads[..., still:])


def rows(
    x: Floats, weights: Matrices, vectors: Vectors, turn: Callable[[Floats], Floats]
) -> tuple[Floats, Floats]:
    """K and V [windows, 1, tokens, ...], as all heads have them."""
    kind = vectors.attention
    both = x @ weights[Role.LATENT_DOWN].T
    norm = vectors.of[Role.LATENT_NORM]
    values = rms(both[..., : kind.latent_rank], norm, kind.latent_eps)
    turned = turn(both[..., None, kind.latent_rank :])[..., 0, :]
    return np.concatenate([values, turned], axis=-1)[:, None], values[:, None]


def by_head(x: Floats, weights: Floats) -> Floats:
    """Products [windows, tokens, heads, outputs] of x [windows, tokens, heads, inputs], each with
    its head's part of the weights [heads * outputs, inputs]."""
    n_heads, size = x.shape[2:]
    parts = weights.reshape(n_heads, -1, size)
    product: Floats = np.matmul(x.swapaxes(1, 2), parts.swapaxes(1, 2))
    return product.swapaxes(1, 2)
