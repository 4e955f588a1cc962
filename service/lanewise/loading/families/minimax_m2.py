"""MiniMax M2: sigmoid experts with a bias in all layers, norms over the whole Q and K."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families import mixtral
from lanewise.loading.families.common import attention_of, check_activation, model_of, n_layers_of
from lanewise.loading.families.experts import (
    experts_of,
    flatten_gguf_experts,
    layers_of_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

THETA = 5000000.0


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_activation(file)
    experts = experts_of(
        *(file, "sigmoid", True),
        n="num_local_experts",
        size="intermediate_size",
        choice_bias=True,
    )
    attention = attention_of(file, qk_norm="whole")
    layers = [Layer(attention, experts)] * n_layers_of(file)
    return model_of(file, "minimax_m2", layers, THETA, partial_of(file, attention.head_dim))


def partial_of(file: ModelFile, head_dim: int, usual: int | None = None) -> float:
    """Return the share of each head that RoPE turns, unless partial_rotary_factor says another."""
    turned = file.integer("rotary_dim", default=usual or head_dim)
    if turned > head_dim:
        raise file.fail("rotary_dim", f"at most the head dimension, {head_dim},")
    return turned / head_dim


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Stack experts, rename the bias of their choice; drop the multi-token prediction layers."""
    tensors.drop_layers_from(config.n_layers)
    mixtral.hf_tensors(tensors, config)
    for layer, _ in layers_of_experts(config):
        for folder in (mixtral.FOLDER, "mlp"):
            bias = f"model.layers.{layer}.{folder}.e_score_correction_bias"
            tensors.rename(bias, tensors.usual(Role.ROUTER_CHOICE_BIAS, layer))


FAMILY = Family(
    "minimax_m2",
    program,
    "minimax-m2",
    hf_tensors=hf_tensors,
    gguf_tensors=flatten_gguf_experts,
)
