"""Ministral 3 (GGUF: mistral3): YaRN, and queries scaled by their position."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Attention, Layer, ModelConfig
from lanewise.loading.families.common import (
    attention_of,
    gated_of,
    model_of,
    n_layers_of,
    window_of,
    with_windows,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf_rope import SCALING
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.rope import rope_settings

BETA = "llama_4_scaling_beta"
THETA = 1000000.0  # by default


def program(file: ModelFile) -> ModelConfig:
    """Read a file; GGUF files have no window."""
    attention = gguf_scaled(file, attention_of(file)) if file.is_gguf else hf_scaled(file)
    window = None if file.is_gguf else window_of(file)
    layers = with_windows(Layer(attention, gated_of(file)), [window] * n_layers_of(file))
    return model_of(file, "ministral3", layers, THETA, own=(BETA,))


def hf_scaled(file: ModelFile) -> Attention:
    """Return attention with the position scale of a config.json's RoPE settings."""
    settings = rope_settings(file)
    beta = settings.number(BETA, default=0.0, zero=True)
    original = settings.integer("original_max_position_embeddings", default=1)
    if beta and original == 1:
        raise settings.fail("original_max_position_embeddings", "a number of positions")
    return scaled(attention_of(file), beta, original)


def gguf_scaled(file: ModelFile, attention: Attention) -> Attention:
    """Return attention with the position scale of a GGUF file's keys."""
    beta = file.number("{arch}.attention.temperature_scale", default=0.0, zero=True)
    context = file.integer("max_position_embeddings")
    original = file.integer(f"{SCALING}original_context_length", default=context)
    original = file.integer("{arch}.attention.temperature_length", default=original)
    return scaled(attention, beta, original)


def scaled(attention: Attention, beta: float, original: int) -> Attention:
    """Return attention whose queries are scaled by position, if beta is not 0."""
    scale = (round_to_f32(beta), original) if beta else None
    return replace(attention, position_scale=scale)


FAMILY = Family("ministral3", program, "mistral3", gguf_interleaved_rope=True)
