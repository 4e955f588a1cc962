"""ERNIE 4.5: Llama whose RoPE turns neighbours, in both kinds of file."""

from __future__ import annotations

from lanewise.loading.families.common import hf_attention, hf_gated, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.sources import Sources

THETA, HEAD_DIM = 500000.0, 128  # of configs that do not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    fields.ignore("use_bias")  # the tensors say it
    layer = Layer(hf_attention(fields, sources, HEAD_DIM), hf_gated(fields, sources))
    layers = [layer] * hf_n_layers(fields, sources)
    return hf_model(fields, "ernie4_5", layers, THETA, tied=True)


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    layer = Layer(gguf_attention(fields, sources), gguf_gated(fields, sources))
    layers = [layer] * gguf_n_layers(fields, sources)
    return gguf_model(fields, sources, "ernie4_5", layers, THETA)


FAMILY = Family(
    "ernie4_5",
    from_hf,
    "ernie4_5",
    from_gguf,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
)
