"""Rows of Q and K in whose files the dimensions that turn together are neighbours.

The library has them half of the turned dimensions apart: i and i + rotated / 2.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lanewise.loading.checkpoint import Role
from lanewise.loading.names import TENSOR_NAMES
from lanewise.loading.program import ModelConfig
from lanewise.loading.rearranging import Rearranged, Rows
from lanewise.loading.sources import Sources

QUERIES = (Role.ATTN_Q, Role.ATTN_Q_BIAS, Role.ATTN_Q_NORM)
KEYS = (Role.ATTN_K, Role.ATTN_K_BIAS, Role.ATTN_K_NORM)
TURNED = (*QUERIES, *KEYS, Role.LATENT_DOWN)


def heads_of(config: ModelConfig, role: Role, layer: int) -> int:
    """Return how many heads the rows of a tensor are; 0 if it is none of Q's or K's.

    A norm has rows of heads where each head has weights of its own.
    """
    attention = config.layers[layer].attention
    if attention is None or role not in TURNED:
        return 0
    if role in (Role.ATTN_Q_NORM, Role.ATTN_K_NORM) and attention.qk_norm != "layer":
        return 0
    return attention.n_heads if role in QUERIES else attention.n_kv_heads


def turned_of(config: ModelConfig, layer: int) -> int:
    """Return how many dimensions of each head turn in a layer with attention."""
    attention = config.layers[layer].attention
    assert attention is not None
    return attention.head_dim if attention.rope is None else config.ropes[attention.rope].rotated


def whole_heads(config: ModelConfig, role: Role, layer: int) -> int:
    """Return how many heads the library has to sort the rows of, which turn as a whole."""
    heads, attention = heads_of(config, role, layer), config.layers[layer].attention
    if attention is None or turned_of(config, layer) != attention.head_dim:
        return 0
    return heads


def in_halves(n_heads: int, head_dim: int, turned: int, first: int = 0) -> Rows:
    """Return for each row as the library has it the number of the file's.

    Those of a head that turn are ``turned`` from ``first`` on.
    """
    head, end = np.arange(head_dim), first + turned
    parts = [head[:first], head[first:end:2], head[first + 1 : end : 2], head[end:]]
    order = np.concatenate(parts)
    rows: Rows = (np.arange(n_heads)[:, None] * head_dim + order).reshape(-1)
    return rows


def with_halves(config: ModelConfig, sources: Sources, column: int) -> Sources:
    """Return the tensors with the rows of half-turned heads in the library's order.

    Those of heads that turn as a whole stay: the library sorts them while it packs them.
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
