"""Qwen 3: Qwen 2 with norms of Q and K instead of biases."""

from __future__ import annotations

from lanewise.loading.families.common import (
    hf_attention,
    hf_gated,
    hf_model,
    hf_n_layers,
    with_windows,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
    gguf_windows,
)
from lanewise.loading.families.qwen2 import qwen_windows
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.sources import Sources

HEAD_DIM = 128  # of configs that do not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    attention = hf_attention(fields, sources, HEAD_DIM, qk_norm="head")
    windows = qwen_windows(fields, hf_n_layers(fields, sources))
    layer = Layer(attention, hf_gated(fields, sources))
    return hf_model(fields, "qwen3", with_windows(layer, windows))


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    layer = Layer(gguf_attention(fields, sources, qk_norm="head"), gguf_gated(fields, sources))
    windows = gguf_windows(fields, gguf_n_layers(fields, sources))
    return gguf_model(fields, sources, "qwen3", with_windows(layer, windows))


FAMILY = Family("qwen3", from_hf, "qwen3", from_gguf)
