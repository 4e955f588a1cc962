"""Qwen 3: Qwen 2 with norms of Q and K instead of biases."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.families.common import (
    gguf_attention,
    gguf_gated,
    gguf_has_qkv_bias,
    gguf_model,
    gguf_n_layers,
    hf_attention,
    hf_gated,
    hf_has_qkv_bias,
    hf_model,
    hf_n_layers,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.qwen2 import hf_windows
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.sources import Sources

HEAD_DIM = 128  # of configs that do not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    attention = hf_attention(fields, HEAD_DIM, hf_has_qkv_bias(sources), "head")
    ffn, windows = hf_gated(fields), hf_windows(fields, hf_n_layers(fields, sources))
    layers = [Layer(replace(attention, window=window), ffn) for window in windows]
    return hf_model(fields, "qwen3", layers)


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    attention = gguf_attention(fields, gguf_has_qkv_bias(sources), "head")
    layer = Layer(attention, gguf_gated(fields))
    return gguf_model(fields, sources, "qwen3", [layer] * gguf_n_layers(fields, sources))


FAMILY = Family("qwen3", from_hf, "qwen3", from_gguf)
