"""Layers of experts: how files describe them, and how their tensors become one matrix each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.names import GGUF
from lanewise.loading.base.program import Attention, Experts, Gated, Layer, ModelConfig
from lanewise.loading.families.common import (
    check_activation,
    gated_of,
    n_layers_of,
    trunk_layers_of,
)
from lanewise.loading.families.naming import usual
from lanewise.loading.files.rearranging import Bytes, Rearranged
from lanewise.loading.programs.model_file import ModelFile

GATING = {1: "softmax", 2: "sigmoid", 3: "top_softmax"}  # values of GGUF's expert_gating_func
GATING_OF = {router: number for number, router in GATING.items()}
# GGUF keys that repeat what the tensors tell.
TOLD_BY_TENSORS = (
    *("{arch}.expert_shared_count", "{arch}.expert_shared_feed_forward_length"),
    *("{arch}.leading_dense_block_count", "{arch}.interleave_moe_layer_step"),
    "{arch}.moe_every_n_layers",
)
EXPERT_ROLES = (Role.EXPERTS_GATE, Role.EXPERTS_UP, Role.EXPERTS_DOWN)
PARTS = ("gate_proj", "up_proj", "down_proj")
EPS = round_to_f32(1e-20)  # added to the sum by which routed weights are divided


def sparse_layers(
    attention: Attention, experts: Experts, gated: Gated | None, is_sparse: Sequence[bool]
) -> list[Layer]:
    """Return layers of experts where ``is_sparse``, and gated ones elsewhere."""
    assert gated is not None or all(is_sparse)
    dense = experts if gated is None else gated
    both = Layer(attention, dense), Layer(attention, experts)
    return [both[sparse] for sparse in is_sparse]


def layers_of_experts(config: ModelConfig) -> list[tuple[int, Experts]]:
    """Return the layers with experts: their numbers, and the experts."""
    return [
        (number, layer.ffn)
        for number, layer in enumerate(config.layers)
        if isinstance(layer.ffn, Experts)
    ]


def first_half(rows: Bytes) -> Bytes:
    """Return gate of fused [experts, gate and up, bytes]."""
    return rows[:, : rows.shape[1] // 2]


def second_half(rows: Bytes) -> Bytes:
    """Return up of fused [experts, gate and up, bytes]."""
    return rows[:, rows.shape[1] // 2 :]


def stack_hf_experts(
    tensors: Rearranged,
    layer: int,
    experts: Experts,
    folder: str = "mlp.experts",
    names: Sequence[str] = PARTS,
) -> None:
    """Make one matrix each of gate, up and down, from separate or stacked experts.

    ``names`` are an expert's gate, up and down in ``folder``; some experts have no gate.
    """
    prefix = f"model.layers.{layer}.{folder}"
    for role, name in zip(EXPERT_ROLES, names, strict=True):
        each = [f"{prefix}.{number}.{name}.weight" for number in range(experts.n)]
        tensors.stack(each, tensors.usual(role, layer))
    fused = f"{prefix}.gate_up_proj"
    gate, up, down = (tensors.usual(role, layer) for role in EXPERT_ROLES)
    tensors.split_experts(fused, {gate: first_half, up: second_half}, experts.size)
    tensors.flatten(f"{prefix}.up_proj", up)
    tensors.flatten(f"{prefix}.down_proj", down)


def stack_experts(tensors: Rearranged, config: ModelConfig) -> None:
    """Do ``stack_hf_experts`` in all layers, for files without other peculiarities."""
    for layer, experts in layers_of_experts(config):
        stack_hf_experts(tensors, layer, experts)


def flatten_gguf_experts(tensors: Rearranged, config: ModelConfig) -> None:
    """Make matrices of GGUF's [experts, rows, columns], and split gate and up."""
    for layer, experts in layers_of_experts(config):
        choice_bias = tensors.usual(Role.ROUTER_CHOICE_BIAS, layer)
        tensors.rename(f"blk.{layer}.exp_probs_b", choice_bias)
        tensors.flatten(choice_bias, dims=2)
        gate, up, _ = (tensors.usual(role, layer) for role in EXPERT_ROLES)
        fused = f"blk.{layer}.ffn_gate_up_exps.weight"
        tensors.split_experts(fused, {gate: first_half, up: second_half}, experts.size)
        for role in EXPERT_ROLES:
            tensors.flatten(tensors.usual(role, layer))
            tensors.flatten(tensors.usual(Role[f"{role.name}_BIAS"], layer), dims=2)
        tensors.flatten(tensors.usual(Role.SHARED_ROUTER, layer), dims=2)


def stack_routed_experts(tensors: Rearranged, config: ModelConfig) -> None:
    """Make matrices of all experts in "mlp", and rename the shared expert's tensors."""
    for number, experts in layers_of_experts(config):
        stack_hf_experts(tensors, number, experts)
        rename_shared(tensors, number, "mlp.shared_experts")


def rename_shared(tensors: Rearranged, layer: int, folder: str) -> None:
    """Rename the shared expert's tensors in ``folder``."""
    shared = (Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN)
    for role, name in zip(shared, PARTS, strict=True):
        tensors.rename(f"model.layers.{layer}.{folder}.{name}.weight", tensors.usual(role, layer))


def experts_of(
    file: ModelFile,
    router: str,
    renormalize: bool,
    n: str = "num_experts",
    used: str = "num_experts_per_tok",
    size: str = "moe_intermediate_size",
    **more: Any,
) -> Experts:
    """Return experts from the named fields, or from a GGUF file's own.

    ``renormalize`` applies if no GGUF key tells it. ``more`` are other fields of Experts; sizes,
    biases and groups among them are config.json's values.
    """
    experts = Experts(
        n=file.integer(n),
        n_used=file.integer(used),
        size=1 if file.is_gguf else file.integer(size),
        router=router,
        renormalize=renormalize,
        **more,
    )
    return gguf_told(file, experts) if file.is_gguf else experts


def gguf_told(file: ModelFile, experts: Experts) -> Experts:
    """Return the experts with what keys and tensors of all families' GGUF files tell."""
    gating, key = GATING_OF[experts.router], "{arch}.expert_gating_func"
    if file.integer(key, default=0, least=0) not in (0, gating):
        raise file.fail(key, str(gating))
    first = first_sparse_layer(file)
    shared = file.tensors.get(usual(Role.SHARED_UP, first, GGUF))
    file.ignore(*TOLD_BY_TENSORS)
    size = file.integer("intermediate_size", default=1)
    return replace(
        experts,
        size=file.integer("moe_intermediate_size", default=size),
        router_bias=file.has(Role.ROUTER_BIAS, first),
        choice_bias=file.has(Role.ROUTER_CHOICE_BIAS, first),
        groups=file.integer("n_group", default=1),
        groups_used=file.integer("topk_group", default=1),
        renormalize=file.flag("norm_topk_prob", default=experts.renormalize),
        scale=round_to_f32(file.number("routed_scaling_factor", default=1.0)),
        bias=file.has(Role.EXPERTS_GATE_BIAS, first),
        shared_size=0 if shared is None else shared.shape[0],
    )


def first_sparse_layer(file: ModelFile) -> int:
    """Return the first layer of a GGUF file that has experts; 0 if there is none."""
    numbers = range(len(file.tensors))
    return next((number for number in numbers if file.has(Role.ROUTER, number)), 0)


def routed_experts_of(
    file: ModelFile, router: str, renormalize: bool, groups: bool = True
) -> Experts:
    """Return the experts of models of DeepSeek's kind.

    Without ``groups``, a config.json does not limit the choice to some groups.
    """
    shared = file.integer("n_shared_experts", default=0, least=0)
    size = 0 if file.is_gguf else file.integer("moe_intermediate_size")
    both = file.integer("n_group", default=1), file.integer("topk_group", default=1)
    return experts_of(
        file,
        router,
        file.flag("norm_topk_prob", default=renormalize),
        n="n_routed_experts",
        choice_bias=router == "sigmoid",
        groups=both[0] if groups else 1,
        groups_used=both[1] if groups else 1,
        denominator_eps=EPS,
        scale=round_to_f32(file.number("routed_scaling_factor", default=1.0)),
        shared_size=size * shared,
    )


def shared_experts_of(file: ModelFile, renormalize: bool) -> Experts:
    """Return experts beside a shared one with a gate, as in Qwen's models."""
    check_activation(file)
    shared = 0 if file.is_gguf else file.integer("shared_expert_intermediate_size")
    return experts_of(
        file, "softmax", renormalize, n=count_name(file), shared_size=shared, shared_gate=True
    )


def count_name(file: ModelFile) -> str:
    """Return the field for the number of experts, for which transformers has two names."""
    other = file.raw("num_local_experts")
    is_other = not file.is_set("num_experts") and other is not None
    return "num_local_experts" if is_other else "num_experts"


def mixture_of(
    file: ModelFile, attention: Attention, experts: Experts, is_sparse: Sequence[bool]
) -> list[Layer]:
    """Return layers of experts where ``is_sparse``, or in GGUF where there is a router."""
    if file.is_gguf:
        is_sparse = [file.has(Role.ROUTER, number) for number in range(len(is_sparse))]
    return sparse_layers(attention, experts, gated_of(file), is_sparse)


def mixture_by_types(
    file: ModelFile, attention: Attention, experts: Experts, first: int = 0
) -> list[Layer]:
    """Return layers of experts where mlp_layer_types says so, without it from ``first`` on."""
    key, kinds = "mlp_layer_types", file.raw("mlp_layer_types")
    is_sparse = sparse_from(file, first)
    if kinds is not None:
        n_layers = len(is_sparse)
        known = ("dense", "sparse")
        if not isinstance(kinds, list) or len(kinds) != n_layers or {*kinds} - {*known}:
            raise file.fail(key, f"{n_layers} times {' or '.join(map(repr, known))}")
        is_sparse = [kind == known[1] for kind in kinds]
    return mixture_of(file, attention, experts, is_sparse)


def sparse_from(file: ModelFile, first: int) -> list[bool]:
    """Return which layers have experts: from number ``first`` on."""
    return [number >= first for number in range(trunk_layers_of(file))]


def sparse_layers_of(file: ModelFile) -> list[bool]:
    """Return which layers have experts, by mlp_only_layers and decoder_sparse_step."""
    dense = file.raw("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(number) is int for number in dense):
        raise file.fail("mlp_only_layers", "a list of layers")
    step = file.integer("decoder_sparse_step", default=1)
    gated = set(dense)
    return [number not in gated and (number + 1) % step == 0 for number in range(n_layers_of(file))]
