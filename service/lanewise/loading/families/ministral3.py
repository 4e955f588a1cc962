"""Ministral 3, and what GGUF calls Mistral 3: YaRN, and queries scaled by their position."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.families.common import (
    hf_attention,
    hf_gated,
    hf_model,
    hf_n_layers,
    hf_window,
    with_windows,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Attention, Layer, ModelConfig
from lanewise.loading.rope import rope_settings
from lanewise.loading.sources import Sources

BETA = "llama_4_scaling_beta"
THETA, HEAD_DIM = 1000000.0, 128  # of configs that do not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    settings = rope_settings(fields)
    beta = settings.number(BETA, default=0.0, zero=True)
    original = settings.integer("original_max_position_embeddings", default=1)
    if beta and original == 1:
        raise settings.fail("original_max_position_embeddings", "a number of positions")
    attention = scaled(hf_attention(fields, sources, HEAD_DIM), beta, original)
    window = hf_window(fields)
    layer = Layer(attention, hf_gated(fields, sources))
    layers = with_windows(layer, [window] * hf_n_layers(fields, sources))
    return hf_model(fields, "ministral3", layers, THETA, own=(BETA,))


def scaled(attention: Attention, beta: float, original: int) -> Attention:
    """Return attention whose queries are scaled by their position, if beta is not 0."""
    scale = (round_to_f32(beta), original) if beta else None
    return replace(attention, position_scale=scale)


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    arch = arch_of(fields)
    beta = fields.number(f"{arch}.attention.temperature_scale", default=0.0, zero=True)
    context = fields.integer(f"{arch}.context_length")
    original = fields.integer(f"{arch}.rope.scaling.original_context_length", default=context)
    original = fields.integer(f"{arch}.attention.temperature_length", original)
    attention = scaled(gguf_attention(fields, sources), beta, original)
    layer = Layer(attention, gguf_gated(fields, sources))
    layers = [layer] * gguf_n_layers(fields, sources)
    return gguf_model(fields, sources, "ministral3", layers, THETA)


FAMILY = Family("ministral3", from_hf, "mistral3", from_gguf, gguf_interleaved_rope=True)
