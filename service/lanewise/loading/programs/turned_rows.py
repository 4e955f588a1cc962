"""Reorders rows of Q and K if files store the two dimensions of a RoPE pair side by side.

The library has them apart by half of the rotated dimensions: i and i + rotated / 2.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.names import TENSOR_NAMES
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.sources import Sources
from lanewise.loading.files.rearranging import Rearranged, Rows

QUERIES = (Role.ATTN_Q, Role.ATTN_Q_BIAS, Role.ATTN_Q_NORM)
KEYS = (Role.ATTN_K, Role.ATTN_K_BIAS, Role.ATTN_K_NORM)
TURNED = (*QUERIES, *KEYS, Role.LATENT_DOWN)


def heads_of(config: ModelConfig, role: Role, layer: int) -> int:
    """Return the number of heads in a tensor's rows; 0 if it is neither Q nor K.

    A norm counts if each head has its own weights.
    """
    attention = config.layers[layer].attention
    if attention is None or role not in TURNED:
        return 0
    if role in (Role.ATTN_Q_NORM, Role.ATTN_K_NORM) and attention.qk_norm != "layer":
        return 0
    return attention.n_heads if role in QUERIES else attention.n_kv_heads


def turned_of(config: ModelConfig, layer: int) -> int:
    """Return the rotated dimensions of each head in a layer with attention."""
    attention = config.layers[layer].attention
    assert attention is not None
    return attention.head_dim if attention.rope is None else config.ropes[attention.rope].rotated


def whole_heads(config: ModelConfig, role: Role, layer: int) -> int:
    """Return the number of heads whose rows the library reorders: fully rotated heads."""
    heads, attention = heads_of(config, role, layer), config.layers[layer].attention
    if attention is None or turned_of(config, layer) != attention.head_dim:
        return 0
    return heads


def in_halves(n_heads: int, head_dim: int, turned: int, first: int = 0) -> Rows:
    """Return the file's row for each row in the library's order.

    Dimensions ``first`` to ``first + turned`` of each head are rotated.
    """
    head, end = np.arange(head_dim), first + turned
    parts = [head[:first], head[first:end:2], head[first + 1 : end : 2], head[end:]]
    order = np.concatenate(parts)
    rows: Rows = (np.arange(n_heads)[:, None] * head_dim + order).reshape(-1)
    return rows


def with_halves(config: ModelConfig, sources: Sources, column: int) -> Sources:
    """Return the tensors with the rows of partly rotated heads in the library's order.

    Fully rotated heads stay: the library reorders them while it packs them.
    """
    tensors = Rearranged(sources)
    for number, layer in enumerate(config.layers):
        attention = layer.attention
        if attention is None or turned_of(config, number) == attention.head_dim:
            continue
        for role in TURNED:
            heads = heads_of(config, role, number)
            if heads == 0:  # a norm that all heads share
                continue
            name = TENSOR_NAMES[role][column].format(number)
            turned, size = turned_of(config, number), attention.head_dim
            if role is Role.LATENT_DOWN:
                size = attention.latent_rank + turned
            first = size - turned if attention.latent_rank else 0
            rows = in_halves(heads, size, turned, first)

            def parts(_: Rows, name: str = name, rows: Rows = rows) -> Mapping[str, Rows]:
                return {name: rows}

            tensors.take_rows(name, len(rows), parts)
    return tensors.out
