"""Seed-OSS: Llama with biases of Q, K and V, and another name for a norm in GGUF files."""

from __future__ import annotations

from lanewise.loading.families.common import hf_attention, hf_gated, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
    gguf_post_attention_norm,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

HEAD_DIM = 128  # of configs that do not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    fields.ignore("attention_out_bias")  # the tensors say it
    layer = Layer(hf_attention(fields, sources, HEAD_DIM), hf_gated(fields, sources))
    return hf_model(fields, "seed_oss", [layer] * hf_n_layers(fields, sources))


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    layer = Layer(gguf_attention(fields, sources), gguf_gated(fields, sources))
    return gguf_model(fields, sources, "seed_oss", [layer] * gguf_n_layers(fields, sources))


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Name the second norm."""
    tensors = Rearranged(sources)
    gguf_post_attention_norm(tensors, config)
    return tensors.out


FAMILY = Family(
    "seed_oss",
    from_hf,
    "seed_oss",
    from_gguf,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
