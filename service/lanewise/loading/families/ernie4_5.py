"""ERNIE 4.5: Llama whose RoPE turns neighbouring dimensions, in both kinds of file."""

from __future__ import annotations

from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import attention_of, gated_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.programs.model_file import ModelFile

THETA = 500000.0  # by default


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    file.ignore("use_bias")  # the tensors tell
    layer = Layer(attention_of(file), gated_of(file))
    return model_of(file, "ernie4_5", [layer] * n_layers_of(file), THETA, tied=True)


FAMILY = Family(
    "ernie4_5", program, "ernie4_5", gguf_interleaved_rope=True, hf_interleaved_rope=True
)
