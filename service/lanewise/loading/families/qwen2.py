"""Qwen 2 and 2.5: Llama with biases of Q, K and V, and windows in some or all layers."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.families.common import (
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
    hf_attention,
    hf_gated,
    hf_model,
    hf_n_layers,
)
from lanewise.loading.families.family import Family
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    attention, ffn = hf_attention(fields, qkv_bias=True), hf_gated(fields)
    windows = hf_windows(fields, hf_n_layers(fields, sources))
    layers = [Layer(replace(attention, window=window), ffn) for window in windows]
    return hf_model(fields, "qwen2", layers)


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    layer = Layer(gguf_attention(fields, qkv_bias=True), gguf_gated(fields))
    return gguf_model(fields, sources, "qwen2", [layer] * gguf_n_layers(fields, sources))


def hf_windows(fields: Fields, n_layers: int) -> list[int | None]:
    """Return each layer's window: that of those from max_window_layers on, if it is used."""
    if not fields.flag("use_sliding_window", default=False):
        return [None] * n_layers
    window = fields.integer("sliding_window", default=0, least=0) or None
    first = fields.integer("max_window_layers", default=28, least=0)
    kinds = fields.values.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == n_layers:
        return [None if kind == "full_attention" else window for kind in kinds]
    return [window if number >= first else None for number in range(n_layers)]


FAMILY = Family("qwen2", from_hf, "qwen2", from_gguf)
