"""Mistral: Llama with a sliding window in its first version."""

from __future__ import annotations

from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import (
    attention_of,
    gated_of,
    model_of,
    window_of,
    windows_of,
    with_windows,
)
from lanewise.loading.families.family import Family
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read config.json; in GGUF files it is llama."""
    layer = Layer(attention_of(file), gated_of(file))
    return model_of(file, "mistral", with_windows(layer, windows_of(file, window_of(file))))


FAMILY = Family("mistral", program, gguf_interleaved_rope=True)
