"""DeepSeek V3, R1 and V3.1, and Kimi K2: latent attention, experts by sigmoid, bias and groups."""

from __future__ import annotations

from lanewise.loading.families.common import check_values, hf_gated, hf_model, hf_n_layers
from lanewise.loading.families.experts import sparse_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.latent import (
    MTP,
    hf_experts,
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
    n_layers = hf_n_layers(fields, sources)
    experts = hf_experts(fields, "sigmoid", renormalize=True)
    is_sparse = [number >= first for number in range(n_layers)]
    gated = hf_gated(fields, sources)
    layers = sparse_layers(hf_latent_attention(fields), experts, gated, is_sparse)
    return hf_model(fields, name, layers)


FAMILY = Family(
    "deepseek_v3",
    from_hf,
    hf_tensors=hf_latent_tensors,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
    harmless=MTP,
)
