"""Command R and Aya: attention and FFN side by side behind one LayerNorm without a bias."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.families.common import hf_attention, hf_gated, hf_model, hf_n_layers
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
from lanewise.loading.program import Attention, Gated, Layer, ModelConfig
from lanewise.loading.sources import Sources

THETA, LOGIT_SCALE = 500000.0, 0.0625  # of configs that do not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json, where some have the context of their weights under another name."""
    if fields.flag("use_qk_norm", default=False):
        raise fields.fail("use_qk_norm", "false (LayerNorm of queries and keys is not supported)")
    context = fields.integer("max_position_embeddings")
    context = max(context, fields.integer("model_max_length", default=context))
    fields = fields.replacing({"max_position_embeddings": context})
    layer = beside(hf_attention(fields, sources), hf_gated(fields, sources))
    return hf_cohere(fields, "cohere", [layer] * hf_n_layers(fields, sources), THETA)


def beside(attention: Attention, ffn: Gated) -> Layer:
    """Return a layer whose attention and FFN read the same norm."""
    return Layer(attention, ffn, wiring="parallel_one_norm")


def hf_cohere(fields: Fields, name: str, layers: list[Layer], theta: float) -> ModelConfig:
    """Return the whole of a model."""
    eps = "layer_norm_eps"
    config = hf_model(fields, name, layers, theta, tied=True, own_kinds=True, eps=eps, norm="layer")
    scale = fields.number("logit_scale", default=LOGIT_SCALE)
    return replace(config, logit_scale=round_to_f32(scale))


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    layer = beside(gguf_attention(fields, sources), gguf_gated(fields, sources))
    layers = [layer] * gguf_n_layers(fields, sources)
    return gguf_cohere(fields, sources, "cohere", layers)


def gguf_cohere(fields: Fields, sources: Sources, name: str, layers: list[Layer]) -> ModelConfig:
    """Return the whole of a model; logits are multiplied by their scale, and 0 means none."""
    scale = fields.number(f"{arch_of(fields)}.logit_scale", default=1.0, zero=True) or 1.0
    config = gguf_model(fields, sources, name, layers, norm="layer")
    return replace(config, logit_scale=round_to_f32(scale))


FAMILY = Family(
    "cohere",
    from_hf,
    "command-r",
    from_gguf,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
