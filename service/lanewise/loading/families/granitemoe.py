"""Granite 3 with experts, whose matrices are stacked in its files already."""

from __future__ import annotations

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import check_activation, hf_model, hf_n_layers
from lanewise.loading.families.experts import (
    EXPERT_ROLES,
    first_half,
    flatten_gguf_experts,
    gguf_experts,
    hf_name,
    layers_of_experts,
    second_half,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import gguf_model, gguf_n_layers
from lanewise.loading.families.granite import (
    gguf_scaled_attention,
    gguf_with_multipliers,
    scaled_attention,
    with_multipliers,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Experts, Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_activation(fields)
    experts = Experts(
        n=fields.integer("num_local_experts"),
        n_used=fields.integer("num_experts_per_tok"),
        size=fields.integer("intermediate_size"),
        router="top_softmax",
    )
    layer = Layer(scaled_attention(fields, sources), experts)
    config = hf_model(fields, "granitemoe", [layer] * hf_n_layers(fields, sources))
    return with_multipliers(config, fields)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Take gate and up of all experts apart, and flatten."""
    tensors = Rearranged(sources)
    for layer, experts in layers_of_experts(config):
        gate, up, down = (hf_name(role, layer) for role in EXPERT_ROLES)
        parts = {gate: first_half, up: second_half}
        router = hf_name(Role.ROUTER, layer)
        folder = f"model.layers.{layer}.block_sparse_moe"
        for fused in ("input_linear.weight", "experts.gate_up_proj"):
            tensors.split_experts(f"{folder}.{fused}", parts, experts.size)
        for whole in ("output_linear.weight", "experts.down_proj"):
            tensors.flatten(f"{folder}.{whole}", down)
        for name in ("router.layer.weight", "router.weight"):
            tensors.rename(f"{folder}.{name}", router)
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    experts = gguf_experts(fields, sources, "top_softmax", renormalize=False)
    layer = Layer(gguf_scaled_attention(fields, sources), experts)
    layers = [layer] * gguf_n_layers(fields, sources)
    return gguf_with_multipliers(gguf_model(fields, sources, "granitemoe", layers), fields)


FAMILY = Family(
    "granitemoe",
    from_hf,
    "granitemoe",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=flatten_gguf_experts,
    gguf_interleaved_rope=True,
)
