"""Llama 2 and 3, and what says that it is one."""

from __future__ import annotations

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
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json; biases are there if the file has them."""
    attention = hf_attention(fields, qkv_bias=hf_has_qkv_bias(sources))
    layer = Layer(attention, hf_gated(fields))
    return hf_model(fields, "llama", [layer] * hf_n_layers(fields, sources))


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata, also that of Mistral, which says that it is Llama."""
    attention = gguf_attention(fields, qkv_bias=gguf_has_qkv_bias(sources))
    layer = Layer(attention, gguf_gated(fields))
    return gguf_model(fields, sources, "llama", [layer] * gguf_n_layers(fields, sources))


FAMILY = Family("llama", from_hf, "llama", from_gguf, gguf_interleaved_rope=True)
