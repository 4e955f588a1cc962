"""Nemotron and Minitron, dense: LayerNorm, squared relu, RoPE over half of each head."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import attention_of, model_of, n_layers_of, plain_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import add_one_to_norms
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

PARTIAL = 0.5  # share of each head that RoPE turns by default


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    layers = [Layer(attention_of(file), plain_of(file, "relu_squared"))] * n_layers_of(file)
    return model_of(
        file, "nemotron", layers, partial=PARTIAL, eps="norm_eps", norm="layer", norm_bias=True
    )


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Add the 1 that files leave out of norms."""
    add_one_to_norms(tensors, config, (Role.ATTN_NORM, Role.FFN_NORM))


FAMILY = Family("nemotron", program, "nemotron", hf_tensors=hf_tensors, gguf_is_usual=False)
