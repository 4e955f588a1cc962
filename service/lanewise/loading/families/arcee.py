"""Arcee's foundation models: Llama with a plain FFN of squared relu."""

from __future__ import annotations

from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import attention_of, model_of, n_layers_of, plain_of
from lanewise.loading.families.family import Family
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    layer = Layer(attention_of(file), plain_of(file, "relu_squared"))
    return model_of(file, "arcee", [layer] * n_layers_of(file))


FAMILY = Family("arcee", program, "arcee", gguf_interleaved_rope=True)
