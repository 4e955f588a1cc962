"""Qwen 3.5, its language model: as Qwen 3 Next, without experts and with nothing fused."""

from __future__ import annotations

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import hf_gated, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_gated,
    gguf_model,
    gguf_trunk_layers,
)
from lanewise.loading.families.qwen3_next import (
    gguf_delta_layers,
    gguf_named,
    hf_delta_model,
    named,
)
from lanewise.loading.families.states import give
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Experts, Gated, ModelConfig
from lanewise.loading.sources import Sources

NAME = "qwen3_5_text"
INPUTS = {
    "in_proj_qkv": Role.STATE_IN,
    "in_proj_z": Role.STATE_GATE,
    "in_proj_a": Role.STATE_DECAY,
    "in_proj_b": Role.STATE_BETA,
}


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json, or its text_config."""
    ffns: list[Gated | Experts] = [hf_gated(fields, sources)] * hf_n_layers(fields, sources)
    return hf_delta_model(fields, sources, NAME, ffns)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names."""
    tensors = named(sources, config)
    for number in range(config.n_layers):
        for name, role in INPUTS.items():
            give(tensors, f"model.layers.{number}.linear_attn.{name}.weight", role, number)
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    ffns: list[Gated | Experts] = [gguf_gated(fields, sources)] * gguf_trunk_layers(fields, sources)
    layers = gguf_delta_layers(fields, sources, ffns, in_turn=True)
    return gguf_model(fields, sources, NAME, layers)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names."""
    return gguf_named(sources, config).out


FAMILY = Family(
    NAME,
    from_hf,
    "qwen35",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
    has_mtp=True,
)
