"""Youtu: dense, with latent attention."""

from __future__ import annotations

from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import gated_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.latent import hf_latent_tensors, latent_attention_of
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read config.json; in GGUF files it is deepseek2."""
    layers = [Layer(latent_attention_of(file), gated_of(file))] * n_layers_of(file)
    return model_of(file, "youtu", layers, tied=True)


FAMILY = Family(
    "youtu",
    program=program,
    hf_tensors=hf_latent_tensors,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
