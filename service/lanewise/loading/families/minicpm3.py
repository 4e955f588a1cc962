"""MiniCPM 3: dense, with latent attention and MiniCPM's multipliers."""

from __future__ import annotations

from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import gated_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.latent import (
    gguf_latent_tensors,
    hf_latent_tensors,
    latent_attention_of,
)
from lanewise.loading.families.minicpm import multiplied
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

EMBEDDING = 12.0
# Values of MiniCPM3-4B, which GGUF files leave out.
OF_4B = {"scale_depth": 1.4, "dim_model_base": 256}


def program(file: ModelFile) -> ModelConfig:
    """Read a file; layers' results are divided by the root of the number of layers."""
    layers = [Layer(latent_attention_of(file), gated_of(file))] * n_layers_of(file)
    config = model_of(file, "minicpm3", layers, tied=True)
    if file.is_gguf:
        file = file.replacing(OF_4B)
    return multiplied(file, config, EMBEDDING)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Reshape matrices of heads."""
    gguf_latent_tensors(tensors, config)


FAMILY = Family(
    "minicpm3",
    program,
    "minicpm3",
    hf_tensors=hf_latent_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
