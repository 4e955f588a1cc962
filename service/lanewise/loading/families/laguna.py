"""Laguna: sigmoid experts beside a shared one, windows in most layers, attention with a gate.

The gate is a softplus. Layers may differ in their number of heads.
"""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.names import GGUF
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families.common import (
    attention_of,
    check_activation,
    check_values,
    in_use,
    model_of,
    n_layers_of,
    ropes_of_kinds,
    window_of,
    with_kinds,
)
from lanewise.loading.families.experts import (
    experts_of,
    flatten_gguf_experts,
    mixture_by_types,
    stack_routed_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import ATTN_GATES, rename_attention_gates
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

THETAS = {"full_attention": 500000.0, "sliding_attention": 10000.0}
NO_KEYS = dict.fromkeys(THETAS, "")  # a config has theta only in rope_parameters
ROPES = {  # of a config that does not say
    kind: {"rope_theta": theta, "partial_rotary_factor": partial}
    for (kind, theta), partial in zip(THETAS.items(), (0.5, 1.0), strict=True)
}
MUST_BE = {
    "moe_router_logit_softcapping": (0, 0.0),
    "moe_apply_router_weight_on_input": (False,),
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_activation(file)
    check_values(file, MUST_BE)
    if not file.is_gguf and file.raw("rope_parameters") is None:
        file = file.replacing({"rope_parameters": ROPES})
    key = "routed_scaling_factor" if file.is_gguf else "moe_routed_scaling_factor"
    experts = experts_of(
        *(file, "sigmoid", True),
        choice_bias=True,
        scale=round_to_f32(file.number(key, default=1.0)),
        shared_size=0 if file.is_gguf else file.integer("shared_expert_intermediate_size"),
    )
    heads = heads_of_layers(file)
    alike = file.replacing({"num_attention_heads": heads[0]})
    attention = replace(attention_of(alike, qk_norm="head"), gate_softplus=True)
    of_heads = has_gates_of_heads(file, heads[0])
    attention = replace(attention, head_gate=of_heads, output_gate=not of_heads)
    layers = mixture_by_types(file, attention, experts, first=1)
    layers = [
        replace(layer, attention=replace(attention, n_heads=n))
        for layer, n in zip(layers, heads, strict=True)
    ]
    layers = with_kinds(file, layers, window_of(file), last=False)
    ropes = ropes_of_kinds(file, attention.head_dim, NO_KEYS, THETAS, scaled=1)
    return model_of(file, "laguna", layers, ropes=in_use(ropes, layers))


def heads_of_layers(file: ModelFile) -> list[int]:
    """Return each layer's number of heads."""
    key = "num_attention_heads" if file.is_gguf else "num_attention_heads_per_layer"
    listed, n_layers = file.raw(key), n_layers_of(file)
    if not isinstance(listed, list):
        return [file.integer("num_attention_heads")] * n_layers
    file.ignore("num_attention_heads")
    if len(listed) != n_layers or not all(type(n) is int and n > 0 for n in listed):
        raise file.fail(key, f"{n_layers} numbers of heads")
    return list(listed)


def has_gates_of_heads(file: ModelFile, n_heads: int) -> bool:
    """Whether a gate is one number for each head, not one for each value."""
    if not file.is_gguf:
        gating = file.raw("gating") if file.is_set("gating") else True
        return gating is True or gating == "per-head"
    gate = file.tensors.get(ATTN_GATES[GGUF].format(0))
    return gate is None or gate.shape[:1] == (n_heads,)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename gates, and stack experts."""
    rename_attention_gates(tensors, config)
    stack_routed_experts(tensors, config)
    for number in range(config.n_layers):
        name = f"model.layers.{number}.mlp.experts.e_score_correction_bias"
        tensors.rename(name, tensors.usual(Role.ROUTER_CHOICE_BIAS, number))


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename gates, and make matrices of experts."""
    rename_attention_gates(tensors, config)
    flatten_gguf_experts(tensors, config)


FAMILY = Family(
    "laguna",
    program,
    "laguna",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
