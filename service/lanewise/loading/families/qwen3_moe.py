"""Qwen 3 with experts, and Coder, which differs in its chat template only."""

from __future__ import annotations

from lanewise.loading.families.common import (
    check_activation,
    hf_attention,
    hf_gated,
    hf_model,
    hf_n_layers,
    hf_sparse_layers,
    hf_window,
)
from lanewise.loading.families.experts import (
    flatten_gguf_experts,
    gguf_experts,
    gguf_sparse_layers,
    hf_count,
    sparse_layers,
    stack_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Experts, ModelConfig
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_activation(fields)
    window = hf_window(fields, switched=True)
    attention = hf_attention(fields, sources, qk_norm="head", window=window)
    experts = Experts(
        n=hf_count(fields),
        n_used=fields.integer("num_experts_per_tok"),
        size=fields.integer("moe_intermediate_size"),
        router="softmax",
        renormalize=fields.flag("norm_topk_prob", default=False),
    )
    is_sparse = hf_sparse_layers(fields, hf_n_layers(fields, sources))
    layers = sparse_layers(attention, experts, hf_gated(fields, sources), is_sparse)
    return hf_model(fields, "qwen3_moe", layers)


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata; all published models divide the chosen weights by their sum."""
    experts = gguf_experts(fields, sources, "softmax", renormalize=True)
    attention = gguf_attention(fields, sources, qk_norm="head")
    n_layers = gguf_n_layers(fields, sources)
    layers = gguf_sparse_layers(fields, sources, attention, experts, n_layers)
    return gguf_model(fields, sources, "qwen3_moe", layers)


FAMILY = Family(
    "qwen3_moe",
    from_hf,
    "qwen3moe",
    from_gguf,
    hf_tensors=stack_experts,
    gguf_tensors=flatten_gguf_experts,
)
