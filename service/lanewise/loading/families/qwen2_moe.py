"""Qwen 1.5 and 2 with experts, and a shared one behind a gate."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import (
    hf_attention,
    hf_gated,
    hf_model,
    hf_n_layers,
    hf_sparse_layers,
    hf_window,
    hf_windows,
)
from lanewise.loading.families.experts import (
    flatten_gguf_experts,
    gguf_experts,
    gguf_sparse_layers,
    hf_name,
    hf_shared_experts,
    layers_of_experts,
    sparse_layers,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    n_layers = hf_n_layers(fields, sources)
    attention = hf_attention(fields, sources, qkv_bias=fields.flag("qkv_bias", default=True))
    experts = hf_shared_experts(fields, renormalize=False)
    is_sparse = hf_sparse_layers(fields, n_layers)
    layers = sparse_layers(attention, experts, hf_gated(fields, sources), is_sparse)
    windows = moe_windows(fields, n_layers)
    layers = [
        Layer(replace(attention, window=window), layer.ffn)
        for layer, window in zip(layers, windows, strict=True)
    ]
    return hf_model(fields, "qwen2_moe", layers)


def moe_windows(fields: Fields, n_layers: int) -> list[int | None]:
    """Return each layer's window: that of every other one below max_window_layers, if any."""
    below = fields.integer("max_window_layers", default=28, least=0)
    have = [number < below and number % 2 == 0 for number in range(n_layers)]
    return hf_windows(fields, hf_window(fields, switched=True), have)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Stack experts, and make a vector of the gate's one row."""
    tensors = Rearranged(sources)
    for layer, experts in layers_of_experts(config):
        stack_hf_experts(tensors, layer, experts)
        tensors.flatten(hf_name(Role.SHARED_ROUTER, layer), dims=2)
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    experts = gguf_experts(fields, sources, "softmax", renormalize=False, shared_gate=True)
    attention = gguf_attention(fields, sources)
    n_layers = gguf_n_layers(fields, sources)
    layers = gguf_sparse_layers(fields, sources, attention, experts, n_layers)
    return gguf_model(fields, sources, "qwen2_moe", layers)


FAMILY = Family(
    "qwen2_moe",
    from_hf,
    "qwen2moe",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=flatten_gguf_experts,
)
