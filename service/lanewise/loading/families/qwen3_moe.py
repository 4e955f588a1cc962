"""Qwen 3 with experts, and Coder, which differs in its chat template only."""

from __future__ import annotations

from lanewise.loading.families.common import (
    check_activation,
    hf_attention,
    hf_gated,
    hf_model,
    hf_n_layers,
    hf_sparse_layers,
)
from lanewise.loading.families.experts import (
    flatten_gguf_experts,
    gguf_experts,
    gguf_is_sparse,
    hf_count,
    layers_of_experts,
    sparse_layers,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Experts, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_activation(fields)
    attention = hf_attention(fields, sources, qk_norm="head", window=hf_window(fields))
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


def hf_window(fields: Fields) -> int | None:
    """Return the window of all layers, if it is used."""
    window = fields.integer("sliding_window", default=0, least=0) or None
    fields.ignore("max_window_layers")  # published configs have it, and nobody reads it
    return window if fields.flag("use_sliding_window", default=False) else None


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Stack experts."""
    tensors = Rearranged(sources)
    for layer, experts in layers_of_experts(config):
        stack_hf_experts(tensors, layer, experts)
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata; all published models divide the chosen weights by their sum."""
    experts = gguf_experts(fields, sources, "softmax", renormalize=True)
    attention = gguf_attention(fields, sources, qk_norm="head")
    is_sparse = gguf_is_sparse(sources, gguf_n_layers(fields, sources))
    layers = sparse_layers(attention, experts, gguf_gated(fields, sources), is_sparse)
    return gguf_model(fields, sources, "qwen3_moe", layers)


FAMILY = Family(
    "qwen3_moe",
    from_hf,
    "qwen3moe",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=flatten_gguf_experts,
)
