"""Qwen 2 and 2.5: Llama with biases of Q, K and V, and windows in some or all layers."""

from __future__ import annotations

from lanewise.loading.families.common import (
    hf_attention,
    hf_gated,
    hf_kinds,
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
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    layer = Layer(hf_attention(fields, sources, qkv_bias=True), hf_gated(fields, sources))
    windows = hf_windows(fields, hf_n_layers(fields, sources))
    return hf_model(fields, "qwen2", with_windows(layer, windows))


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    layer = Layer(gguf_attention(fields, sources, qkv_bias=True), gguf_gated(fields, sources))
    windows = gguf_windows(fields, gguf_n_layers(fields, sources))
    return gguf_model(fields, sources, "qwen2", with_windows(layer, windows))


def hf_windows(fields: Fields, n_layers: int) -> list[int | None]:
    """Return each layer's window: that of those from max_window_layers on, if it is used."""
    window = fields.integer("sliding_window", default=0, least=0) or None
    first = fields.integer("max_window_layers", default=28, least=0)
    kinds = hf_kinds(fields, n_layers)
    if not fields.flag("use_sliding_window", default=False):
        window = None
    if kinds is None:
        return [window if number >= first else None for number in range(n_layers)]
    return [window if kind == "sliding_attention" else None for kind in kinds]


FAMILY = Family("qwen2", from_hf, "qwen2", from_gguf)
