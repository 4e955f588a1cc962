"""InternLM 3: Llama with other names for biases in its config."""

from __future__ import annotations

from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import attention_of, gated_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read config.json; in GGUF files it is llama."""
    file.ignore("qkv_bias", "bias")  # the tensors tell
    layer = Layer(attention_of(file), gated_of(file))
    return model_of(file, "internlm3", [layer] * n_layers_of(file))


FAMILY = Family("internlm3", program)
