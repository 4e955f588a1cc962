"""Granite 3 and 4 without states: Llama with four multipliers."""

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
from lanewise.loading.program import Attention, Layer, ModelConfig
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    layer = Layer(scaled_attention(fields, sources), hf_gated(fields, sources))
    config = hf_model(fields, "granite", [layer] * hf_n_layers(fields, sources))
    return with_multipliers(config, fields)


def scaled_attention(fields: Fields, sources: Sources) -> Attention:
    """Return attention whose scores are multiplied by a number of the config."""
    scale = round_to_f32(fields.number("attention_multiplier", default=1.0))
    return replace(hf_attention(fields, sources), score_scale=scale)


def with_multipliers(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Return a config with the other three multipliers; logits are divided by theirs."""
    return replace(
        config,
        embedding_scale=round_to_f32(fields.number("embedding_multiplier", default=1.0)),
        residual_scale=round_to_f32(fields.number("residual_multiplier", default=1.0)),
        logit_scale=round_to_f32(1.0 / fields.number("logits_scaling", default=1.0)),
    )


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    layer = Layer(gguf_scaled_attention(fields, sources), gguf_gated(fields, sources))
    layers = [layer] * gguf_n_layers(fields, sources)
    return gguf_with_multipliers(gguf_model(fields, sources, "granite", layers), fields)


def gguf_scaled_attention(fields: Fields, sources: Sources) -> Attention:
    """Return attention with its scale; 0 is that of other families. Some have no positions."""
    arch = arch_of(fields)
    scale = fields.number(f"{arch}.attention.scale", default=0.0, zero=True)
    attention = replace(gguf_attention(fields, sources), score_scale=round_to_f32(scale))
    has_rope = fields.flag(f"{arch}.rope.scaling.finetuned", default=True)
    return attention if has_rope else replace(attention, rope=None)


def gguf_with_multipliers(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Return a config with the other three multipliers; 0 means none."""
    arch = arch_of(fields)
    embedding, residual, logits = (
        fields.number(f"{arch}.{name}", default=1.0, zero=True) or 1.0
        for name in ("embedding_scale", "residual_scale", "logit_scale")
    )
    return replace(
        config,
        embedding_scale=round_to_f32(embedding),
        residual_scale=round_to_f32(residual),
        logit_scale=round_to_f32(1.0 / logits),
    )


FAMILY = Family("granite", from_hf, "granite", from_gguf, gguf_interleaved_rope=True)
