"""Qwen 3 Next: gated delta rules in three of four layers, gated attention, experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lanewise.loading.checkpoint import Role
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
    hf_shared_experts,
    layers_of_experts,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_model,
    gguf_post_attention_norm,
    gguf_trunk_layers,
)
from lanewise.loading.families.naming import usual
from lanewise.loading.families.states import (
    Mixer,
    every_nth,
    give,
    give_conv,
    layers_of,
    own_kinds,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF, HF
from lanewise.loading.program import Attention, Experts, Gated, GatedDelta, Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged, Rows
from lanewise.loading.sources import Sources

KINDS = ("linear_attention", "full_attention")
STEP = 4  # of layers one has attention
HEAD_DIM, PARTIAL = 256, 0.25  # of configs that do not say
MTP = "mtp."  # tensors that guess further tokens
# Norms whose weights are stored less 1: not that of a state.
NORMS = (
    *(Role.ATTN_NORM, Role.FFN_NORM, Role.ATTN_Q_NORM, Role.ATTN_K_NORM),
    *(Role.MTP_EMBEDDING_NORM, Role.MTP_HIDDEN_NORM, Role.MTP_NORM),
)
MROPE = ("mrope_section", "mrope_interleaved")  # which of a text's three equal positions turn what


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    n_layers = hf_n_layers(fields, sources)
    experts, gated = hf_shared_experts(fields, renormalize=True), hf_gated(fields, sources)
    is_sparse = hf_sparse_layers(fields, n_layers)
    ffns = [experts if sparse else gated for sparse in is_sparse]
    return hf_delta_model(fields, sources, "qwen3_next", ffns)


def hf_delta_model(
    fields: Fields, sources: Sources, name: str, ffns: list[Gated | Experts]
) -> ModelConfig:
    """Return the whole of a model whose layers have these FFNs."""
    check_activation(fields)
    for key, wanted in (("attention_bias", False), ("attn_output_gate", True)):
        if fields.flag(key, default=wanted) != wanted:
            raise fields.fail(key, str(wanted).lower())
    attention = hf_attention(fields, sources, HEAD_DIM, qk_norm="head")
    mixers: dict[str, Mixer] = {
        "linear_attention": GatedDelta(
            taps=fields.integer("linear_conv_kernel_dim", default=4),
            n_heads=fields.integer("linear_num_value_heads", default=32),
            value_dim=fields.integer("linear_value_head_dim", default=128),
            n_key_heads=fields.integer("linear_num_key_heads", default=16),
            key_dim=fields.integer("linear_key_head_dim", default=128),
        ),
        "full_attention": replace(attention, output_gate=True),
    }
    step = fields.integer("full_attention_interval", default=STEP)
    default = every_nth(len(ffns), step, KINDS)
    kinds = own_kinds(fields, "layer_types", KINDS, len(ffns), default)
    layers = layers_of(mixers, kinds, ffns)
    return hf_model(fields, name, layers, partial=PARTIAL, own_kinds=True, own=MROPE)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names: what a group of heads has of each lies together."""
    tensors = named(sources, config)
    for number, layer in enumerate(config.layers):
        if isinstance(layer.state, GatedDelta):
            folder = f"model.layers.{number}.linear_attn"
            split_mixed(tensors, f"{folder}.in_proj_qkvz.weight", layer.state, number, HF)
            split_rates(tensors, f"{folder}.in_proj_ba.weight", layer.state, number, HF)
    return tensors.out


def named(sources: Sources, config: ModelConfig) -> Rearranged:
    """Return the tensors under their usual names, but for those that make states' inputs."""
    kept = {name: tensor for name, tensor in sources.items() if not name.startswith(MTP)}
    tensors = Rearranged(kept)
    tensors.add_one(usual(Role.OUTPUT_NORM))
    for number, layer in enumerate(config.layers):
        folder = f"model.layers.{number}.linear_attn"
        for role in NORMS:
            tensors.add_one(usual(role, number))
        if layer.attention is not None:
            split_queries(tensors, usual(Role.ATTN_Q, number), layer.attention, number, HF)
            continue
        give_conv(tensors, f"{folder}.conv1d.weight", layer.state, number)
        tensors.exponentiate(f"{folder}.A_log")
        give(tensors, f"{folder}.A_log", Role.STATE_RATE, number)
        give(tensors, f"{folder}.dt_bias", Role.STATE_DECAY_BIAS, number)
        give(tensors, f"{folder}.norm.weight", Role.STATE_NORM, number)
        give(tensors, f"{folder}.out_proj.weight", Role.STATE_OUT, number)
    for number, experts in layers_of_experts(config):
        stack_hf_experts(tensors, number, experts)
        tensors.flatten(usual(Role.SHARED_ROUTER, number), dims=2)
    return tensors


def split_queries(
    tensors: Rearranged, name: str, attention: Attention, number: int, column: int
) -> None:
    """Take apart the queries and the gate of each head, which lie together."""

    def parts(rows: Rows) -> dict[str, Rows]:
        heads = rows.reshape(attention.n_heads, 2, attention.head_dim)
        return {
            usual(role, number, column): heads[:, part].reshape(-1)
            for part, role in enumerate((Role.ATTN_Q, Role.ATTN_GATE))
        }

    tensors.take_rows(name, 2 * attention.n_heads * attention.head_dim, parts)


def split_mixed(
    tensors: Rearranged, name: str, state: GatedDelta, number: int, column: int
) -> None:
    """Take apart what each head of keys has: q, k, and the v and z of its heads."""
    values = state.inner // state.n_key_heads

    def parts(rows: Rows) -> dict[str, Rows]:
        heads = rows.reshape(state.n_key_heads, -1)
        q, k, v, z = np.split(heads, np.cumsum([state.key_dim, state.key_dim, values]), axis=1)
        return {
            usual(Role.STATE_IN, number, column): np.concatenate([q, k, v], axis=None),
            usual(Role.STATE_GATE, number, column): z.reshape(-1),
        }

    tensors.take_rows(name, state.channels + state.inner, parts)


def split_rates(
    tensors: Rearranged, name: str, state: GatedDelta, number: int, column: int
) -> None:
    """Take apart what each head of keys has: b and a of its heads."""

    def parts(rows: Rows) -> dict[str, Rows]:
        heads = rows.reshape(state.n_key_heads, 2, -1)
        return {
            usual(role, number, column): heads[:, part].reshape(-1)
            for part, role in enumerate((Role.STATE_BETA, Role.STATE_DECAY))
        }

    tensors.take_rows(name, 2 * state.n_heads, parts)


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    return gguf_delta_model(fields, sources, "qwen3_next", in_turn=False)


def gguf_delta_model(fields: Fields, sources: Sources, name: str, in_turn: bool) -> ModelConfig:
    """Return the whole of a model with experts.

    ``in_turn``: the heads that have a head of keys lie apart from each other.
    """
    experts = gguf_experts(fields, sources, "softmax", renormalize=True, shared_gate=True)
    ffns: list[Gated | Experts] = [experts] * gguf_trunk_layers(fields, sources)
    layers = gguf_delta_layers(fields, sources, ffns, in_turn)
    return gguf_model(fields, sources, name, layers)


def gguf_delta_layers(
    fields: Fields, sources: Sources, ffns: list[Gated | Experts], in_turn: bool
) -> list[Layer]:
    """Return layers with these FFNs; the tensors say which ones have attention."""
    arch = arch_of(fields)
    fields.ignore(
        *(f"{arch}.full_attention_interval", f"{arch}.attention.recurrent_layers"),
        f"{arch}.rope.dimension_sections",
    )
    n_heads, inner = (fields.integer(f"{arch}.ssm.{n}") for n in ("time_step_rank", "inner_size"))
    if inner % n_heads:
        raise fields.fail(f"{arch}.ssm.inner_size", f"a multiple of {n_heads} heads")
    n_key_heads = fields.integer(f"{arch}.ssm.group_count")
    mixers: dict[str, Mixer] = {
        "linear_attention": GatedDelta(
            taps=fields.integer(f"{arch}.ssm.conv_kernel"),
            n_heads=n_heads,
            value_dim=inner // n_heads,
            n_key_heads=n_key_heads,
            key_dim=fields.integer(f"{arch}.ssm.state_size"),
            keys_in_turn=in_turn and 1 < n_key_heads < n_heads,
        ),
        "full_attention": replace(
            gguf_attention(fields, sources, qk_norm="head"), output_gate=True
        ),
    }
    attend = [usual(Role.ATTN_OUTPUT, number, GGUF) in sources for number in range(len(ffns))]
    return layers_of(mixers, [KINDS[has_attention] for has_attention in attend], ffns)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names; older files have all inputs of states in one."""
    tensors = gguf_named(sources, config)
    for number, layer in enumerate(config.layers):
        if isinstance(layer.state, GatedDelta):
            split_rates(tensors, f"blk.{number}.ssm_ba.weight", layer.state, number, GGUF)
    return flatten_gguf_experts(tensors.out, config)


def gguf_named(sources: Sources, config: ModelConfig) -> Rearranged:
    """Return the tensors of the counted layers under their usual names."""
    tensors = Rearranged(sources)
    tensors.drop_layers_from("blk.", config.n_layers)
    gguf_post_attention_norm(tensors, config)
    for number, layer in enumerate(config.layers):
        folder = f"blk.{number}"
        if layer.attention is not None:
            queries = usual(Role.ATTN_Q, number, GGUF)
            split_queries(tensors, queries, layer.attention, number, GGUF)
        if isinstance(layer.state, GatedDelta):
            if f"{folder}.attn_qkv.weight" in sources:
                give(tensors, f"{folder}.attn_qkv.weight", Role.STATE_IN, number, GGUF)
                give(tensors, f"{folder}.attn_gate.weight", Role.STATE_GATE, number, GGUF)
            else:
                whole = f"{folder}.ssm_in.weight"
                split_mixed(tensors, whole, layer.state, number, GGUF)
            give_conv(tensors, f"{folder}.ssm_conv1d.weight", layer.state, number, GGUF)
    return tensors


FAMILY = Family(
    "qwen3_next",
    from_hf,
    "qwen3next",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
    has_mtp=True,
)
