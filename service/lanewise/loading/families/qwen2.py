"""Qwen 2 and 2.5: Llama with biases of Q, K and V, and windows in some or all layers."""

from __future__ import annotations

from lanewise.loading.families.common import (
    hf_attention,
    hf_gated,
    hf_model,
    hf_n_layers,
    hf_window,
    hf_windows,
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
    windows = qwen_windows(fields, hf_n_layers(fields, sources))
    return hf_model(fields, "qwen2", with_windows(layer, windows))


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    layer = Layer(gguf_attention(fields, sources, qkv_bias=True), gguf_gated(fields, sources))
    windows = gguf_windows(fields, gguf_n_layers(fields, sources))
    return gguf_model(fields, sources, "qwen2", with_windows(layer, windows))


def qwen_windows(fields: Fields, n_layers: int) -> list[int | None]:
    """Return each layer's window: that of those from max_window_layers on, if it is used."""
    first = fields.integer("max_window_layers", default=28, least=0)
    have = [number >= first for number in range(n_layers)]
    return hf_windows(fields, hf_window(fields, switched=True), have)


FAMILY = Family("qwen2", from_hf, "qwen2", from_gguf)
