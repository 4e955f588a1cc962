"""Granite 3, and 4 without states: Llama with four multipliers."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Attention, Layer, ModelConfig
from lanewise.loading.families.common import attention_of, gated_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    layer = Layer(scaled_attention_of(file), gated_of(file))
    return with_multipliers(model_of(file, "granite", [layer] * n_layers_of(file)), file)


def scaled_attention_of(file: ModelFile) -> Attention:
    """Return attention with the file's scale of scores; a GGUF file may disable positions."""
    scale = file.number("attention_multiplier", default=0.0)
    has_rope = file.flag("{arch}.rope.scaling.finetuned", default=True)
    attention = replace(attention_of(file), score_scale=round_to_f32(scale))
    return attention if has_rope else replace(attention, rope=None)


def with_multipliers(config: ModelConfig, file: ModelFile) -> ModelConfig:
    """Return a config with the other three multipliers; logits are divided by theirs."""
    return replace(
        config,
        embedding_scale=round_to_f32(file.number("embedding_multiplier", default=1.0)),
        residual_scale=round_to_f32(file.number("residual_multiplier", default=1.0)),
        logit_scale=round_to_f32(1.0 / file.number("logits_scaling", default=1.0)),
    )


FAMILY = Family("granite", program, "granite", gguf_interleaved_rope=True)
