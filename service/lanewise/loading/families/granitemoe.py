"""Granite 3 with experts, which its files store stacked."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import check_activation, model_of, n_layers_of
from lanewise.loading.families.experts import (
    EXPERT_ROLES,
    experts_of,
    first_half,
    flatten_gguf_experts,
    layers_of_experts,
    second_half,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.granite import scaled_attention_of, with_multipliers
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_activation(file)
    experts = experts_of(
        file, "top_softmax", False, n="num_local_experts", size="intermediate_size"
    )
    layers = [Layer(scaled_attention_of(file), experts)] * n_layers_of(file)
    return with_multipliers(model_of(file, "granitemoe", layers), file)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Split gate and up of all experts, and flatten."""
    for layer, experts in layers_of_experts(config):
        gate, up, down = (tensors.usual(role, layer) for role in EXPERT_ROLES)
        parts = {gate: first_half, up: second_half}
        router = tensors.usual(Role.ROUTER, layer)
        folder = f"model.layers.{layer}.block_sparse_moe"
        for fused in ("input_linear.weight", "experts.gate_up_proj"):
            tensors.split_experts(f"{folder}.{fused}", parts, experts.size)
        for whole in ("output_linear.weight", "experts.down_proj"):
            tensors.flatten(f"{folder}.{whole}", down)
        for name in ("router.layer.weight", "router.weight"):
            tensors.rename(f"{folder}.{name}", router)


FAMILY = Family(
    "granitemoe",
    program,
    "granitemoe",
    hf_tensors=hf_tensors,
    gguf_tensors=flatten_gguf_experts,
    gguf_interleaved_rope=True,
)
