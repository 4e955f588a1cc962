"""Qwen 3.5 with experts, its language model."""

from __future__ import annotations

from lanewise.loading.families import qwen3_5
from lanewise.loading.families.common import hf_n_layers
from lanewise.loading.families.experts import flatten_gguf_experts, hf_shared_experts
from lanewise.loading.families.family import Family
from lanewise.loading.families.qwen3_next import (
    gguf_delta_model,
    gguf_named,
    hf_delta_model,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Experts, Gated, ModelConfig
from lanewise.loading.sources import Sources

NAME = "qwen3_5_moe_text"


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json, or its text_config."""
    ffns: list[Gated | Experts] = [hf_shared_experts(fields, renormalize=True)] * hf_n_layers(
        fields, sources
    )
    return hf_delta_model(fields, sources, NAME, ffns)


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    return gguf_delta_model(fields, sources, NAME, in_turn=True)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names, and make matrices of stacked ones."""
    return flatten_gguf_experts(gguf_named(sources, config).out, config)


FAMILY = Family(
    NAME,
    from_hf,
    "qwen35moe",
    from_gguf,
    hf_tensors=qwen3_5.hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
    has_mtp=True,
)
