"""Ling and Ring 2: sigmoid experts in groups beside shared ones, RoPE over a part of each head."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families.common import (
    attention_of,
    check_activation,
    check_values,
    model_of,
)
from lanewise.loading.families.experts import (
    flatten_gguf_experts,
    mixture_of,
    routed_experts_of,
    sparse_from,
    stack_routed_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import QKV, qkv_rows, split_roles
from lanewise.loading.families.states import check_no_bias
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

PARTIAL = 0.5  # share of each head that RoPE turns by default
NAMES = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
MUST_BE = {"norm_topk_prob": (True,), "score_function": ("sigmoid",)}
# Names in a layer of a directory to roles.
OF_LAYER = {
    "attention.dense.weight": Role.ATTN_OUTPUT,
    "attention.query_layernorm.weight": Role.ATTN_Q_NORM,
    "attention.key_layernorm.weight": Role.ATTN_K_NORM,
    "mlp.gate.expert_bias": Role.ROUTER_CHOICE_BIAS,
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_activation(file)
    if not file.is_gguf:
        if not file.flag("use_qk_norm", default=False):  # as in Ling 1, of the same model_type
            raise file.fail("use_qk_norm", "true (models without these norms are not supported)")
        check_no_bias(file, "use_bias", "use_qkv_bias")
    check_values(file, MUST_BE)
    file = file.called(NAMES)
    experts = routed_experts_of(file, "sigmoid", renormalize=True)
    first = file.integer("first_k_dense_replace", default=0, least=0)
    attention = attention_of(file, qk_norm="head")
    layers = mixture_of(file, attention, experts, sparse_from(file, first))
    return model_of(file, "bailing_moe", layers, partial=PARTIAL)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors, split heads, stack experts; drop the multi-token prediction layers."""
    tensors.drop_layers_from(config.n_layers)
    stack_routed_experts(tensors, config)
    rows = qkv_rows(config.heads)
    for number in range(config.n_layers):
        folder = f"model.layers.{number}."
        split_roles(tensors, f"{folder}attention.query_key_value", QKV, rows, number)
        for name, role in OF_LAYER.items():
            tensors.rename(folder + name, tensors.usual(role, number))


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Make matrices of experts; drop the multi-token prediction layers."""
    tensors.drop_layers_from(config.n_layers)
    flatten_gguf_experts(tensors, config)


FAMILY = Family(
    "bailing_moe",
    program,
    "bailingmoe2",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
