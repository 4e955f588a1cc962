"""DeepSeek V3, R1 and V3.1, and Kimi K2: latent attention, experts by sigmoid, bias and groups."""

from __future__ import annotations

from lanewise.loading.families.common import check_values, hf_model
from lanewise.loading.families.experts import hf_dense_first, hf_routed_experts
from lanewise.loading.families.family import Family
from lanewise.loading.families.latent import (
    hf_latent_attention,
    hf_latent_tensors,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import ModelConfig
from lanewise.loading.sources import Sources

MUST_BE = {"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",)}


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    first = fields.integer("first_k_dense_replace", default=3, least=0)
    return config_of(fields, sources, "deepseek_v3", first)


def config_of(fields: Fields, sources: Sources, name: str, first: int) -> ModelConfig:
    """Return a model whose layers are experts from number ``first`` on."""
    check_values(fields, MUST_BE)
    experts = hf_routed_experts(fields, "sigmoid", renormalize=True)
    layers = hf_dense_first(fields, sources, hf_latent_attention(fields), experts, first)
    return hf_model(fields, name, layers)


FAMILY = Family(
    "deepseek_v3",
    from_hf,
    hf_tensors=hf_latent_tensors,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
