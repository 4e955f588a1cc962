"""Seed-OSS: Llama with biases of Q, K and V, and another name of a norm in GGUF files."""

from __future__ import annotations

from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import attention_of, gated_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import gguf_post_attention_norm
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    file.ignore("attention_out_bias")  # the tensors tell
    layer = Layer(attention_of(file), gated_of(file))
    return model_of(file, "seed_oss", [layer] * n_layers_of(file))


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename the second norm."""
    gguf_post_attention_norm(tensors, config)


FAMILY = Family("seed_oss", program, "seed_oss", gguf_tensors=gguf_tensors, gguf_is_usual=False)
