"""Checks sizes of attention heads before anything is allocated from them."""

from __future__ import annotations

from collections.abc import Iterable

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.program import Attention

MAX_HEAD_DIM = 512


def check_heads(attention: Attention, source: str) -> Attention:
    """Return ``attention``, or raise ModelFileError if its heads are not supported."""
    for fault in head_faults(attention):
        raise ModelFileError(f"{source}: {fault}")
    return attention


def head_faults(attention: Attention) -> Iterable[str]:
    """Yield what is wrong with the heads."""
    if attention.n_heads % attention.n_kv_heads:
        yield (
            f"{attention.n_heads} attention heads are not a multiple of"
            f" {attention.n_kv_heads} key/value heads"
        )
    if attention.head_dim % 2 or attention.head_dim > MAX_HEAD_DIM:
        yield (
            f"head dimension {attention.head_dim} is not supported;"
            f" it must be even and at most {MAX_HEAD_DIM}"
        )
