"""Youtu: dense, with latent attention."""

from __future__ import annotations

from lanewise.loading.families.common import gated_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.latent import hf_latent_tensors, latent_attention_of
from lanewise.loading.model_file import ModelFile
from lanewise.loading.program import Layer, ModelConfig


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
