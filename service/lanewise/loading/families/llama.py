"""Llama 2 and 3, and files that declare themselves `llama` (Mistral and Mixtral in GGUF)."""

from __future__ import annotations

from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families import mixtral
from lanewise.loading.families.common import (
    attention_of,
    gated_of,
    model_of,
    window_of,
    windows_of,
    with_windows,
)
from lanewise.loading.families.experts import flatten_gguf_experts
from lanewise.loading.families.family import Family
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a file; GGUF files of Mistral and Mixtral are llama, too."""
    if file.is_gguf and file.integer("num_experts", default=0, least=0):
        return mixtral.program(file)
    layer = Layer(attention_of(file), gated_of(file))
    window = window_of(file) if file.is_gguf else None
    return model_of(file, "llama", with_windows(layer, windows_of(file, window)))


FAMILY = Family(
    "llama", program, "llama", gguf_tensors=flatten_gguf_experts, gguf_interleaved_rope=True
)
