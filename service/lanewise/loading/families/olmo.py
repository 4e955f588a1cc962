"""OLMo 1: Llama with LayerNorm without weights."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import attention_of, gated_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

EPS = 1e-5  # of all norms; configs do not have it


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    layer = Layer(replace(attention_of(file), qkv_clip=clip_of(file)), gated_of(file))
    layers = [layer] * n_layers_of(file)
    if not file.is_gguf:
        file = file.replacing({"layer_norm_eps": EPS})
    return model_of(file, "olmo", layers, eps="layer_norm_eps", norm="layer")


def clip_of(file: ModelFile) -> float:
    """Return the limit of Q, K and V; null means none."""
    return round_to_f32(file.number("clip_qkv", default=0.0))


def add_weights(tensors: Rearranged, config: ModelConfig) -> None:
    """Add norm weights of 1."""
    names = [tensors.usual(Role.OUTPUT_NORM)]
    for number in range(config.n_layers):
        names += [tensors.usual(role, number) for role in (Role.ATTN_NORM, Role.FFN_NORM)]
    for name in names:
        tensors.add_ones(name, config.hidden_size)


FAMILY = Family(
    "olmo",
    program,
    "olmo",
    hf_tensors=add_weights,
    gguf_tensors=add_weights,
    gguf_interleaved_rope=True,
    gguf_is_usual=False,
)
