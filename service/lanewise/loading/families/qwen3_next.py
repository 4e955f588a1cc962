"""Qwen 3 Next: the gated delta rule in three of four layers, gated attention, experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import (
    Attention,
    Experts,
    Gated,
    ModelConfig,
)
from lanewise.loading.base.recurrences import GatedDelta
from lanewise.loading.families.common import (
    MROPE,
    attention_of,
    check_activation,
    gated_of,
    model_of,
    trunk_layers_of,
)
from lanewise.loading.families.experts import (
    flatten_gguf_experts,
    layers_of_experts,
    shared_experts_of,
    sparse_layers_of,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import gguf_post_attention_norm
from lanewise.loading.families.states import Mixer, every_nth, give, give_conv, layers_of, own_kinds
from lanewise.loading.files.rearranging import Rearranged, Rows
from lanewise.loading.programs.model_file import ModelFile

KINDS = ("linear_attention", "full_attention")
STEP = 4  # every 4th layer has attention
PARTIAL = 0.25  # by default
MTP = "mtp."  # multi-token prediction tensors
# Norms whose weights are stored minus 1; a state's norm is not one.
NORMS = (
    *(Role.ATTN_NORM, Role.FFN_NORM, Role.ATTN_Q_NORM, Role.ATTN_K_NORM),
    *(Role.MTP_EMBEDDING_NORM, Role.MTP_HIDDEN_NORM, Role.MTP_NORM),
)


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    experts, is_sparse = delta_experts(file), sparse_layers_of(file)
    if not file.is_gguf:
        gated = gated_of(file)
        return delta_model_of(
            file, "qwen3_next", [experts if sparse else gated for sparse in is_sparse]
        )
    return delta_model_of(file, "qwen3_next", [experts] * trunk_layers_of(file))


def delta_experts(file: ModelFile) -> Experts:
    """Return the experts, whose chosen weights are renormalized."""
    return shared_experts_of(file, file.flag("norm_topk_prob", default=True))


def delta_model_of(
    file: ModelFile, name: str, ffns: Sequence[Gated | Experts], in_turn: bool = False
) -> ModelConfig:
    """Return the program of a model whose layers have these FFNs.

    ``in_turn``: in GGUF files the value heads of a key head are not adjacent.
    """
    check_activation(file)
    for key, wanted in (("attention_bias", False), ("attn_output_gate", True)):
        if file.flag(key, default=wanted) != wanted:
            raise file.fail(key, str(wanted).lower())
    attention = replace(attention_of(file, qk_norm="head"), output_gate=True)
    mixers: dict[str, Mixer] = {
        "linear_attention": state_of(file, in_turn),
        "full_attention": attention,
    }
    layers = layers_of(mixers, kinds_of(file, len(ffns)), ffns)
    return model_of(file, name, layers, partial=PARTIAL, own_kinds=True, own=MROPE)


def state_of(file: ModelFile, in_turn: bool) -> GatedDelta:
    """Return the state that a file describes; GGUF files use Mamba's keys."""
    n_heads = file.integer("linear_num_value_heads")
    n_key_heads = file.integer("linear_num_key_heads")
    if file.is_gguf:
        file.ignore("{arch}.rope.dimension_sections")
        key = "{arch}.ssm.inner_size"
        value_dim, rest = divmod(file.integer(key), n_heads)
        if rest:
            raise file.fail(key, f"a multiple of {n_heads} heads")
    else:
        value_dim = file.integer("linear_value_head_dim")
    return GatedDelta(
        taps=file.integer("linear_conv_kernel_dim"),
        n_heads=n_heads,
        value_dim=value_dim,
        n_key_heads=n_key_heads,
        key_dim=file.integer("linear_key_head_dim"),
        keys_in_turn=file.is_gguf and in_turn and 1 < n_key_heads < n_heads,
    )


def kinds_of(file: ModelFile, n_layers: int) -> list[str]:
    """Return each layer's kind, which a GGUF file's tensors tell."""
    if file.is_gguf:
        file.ignore("{arch}.full_attention_interval", "{arch}.attention.recurrent_layers")
        return [KINDS[file.has(Role.ATTN_OUTPUT, number)] for number in range(n_layers)]
    step = file.integer("full_attention_interval", default=STEP)
    return own_kinds(file, "layer_types", KINDS, n_layers, every_nth(n_layers, step, KINDS))


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors; projections are interleaved by group of heads."""
    named(tensors, config)
    for number, layer in enumerate(config.layers):
        if isinstance(layer.state, GatedDelta):
            folder = f"model.layers.{number}.linear_attn"
            split_mixed(tensors, f"{folder}.in_proj_qkvz.weight", layer.state, number)
            split_rates(tensors, f"{folder}.in_proj_ba.weight", layer.state, number)


def named(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename all tensors but the matrices of states' inputs."""
    tensors.drop(*(name for name in tensors.out if name.startswith(MTP)))
    tensors.add_one(tensors.usual(Role.OUTPUT_NORM))
    for number, layer in enumerate(config.layers):
        folder = f"model.layers.{number}.linear_attn"
        for role in NORMS:
            tensors.add_one(tensors.usual(role, number))
        if layer.attention is not None:
            split_queries(tensors, tensors.usual(Role.ATTN_Q, number), layer.attention, number)
            continue
        give_conv(tensors, f"{folder}.conv1d.weight", layer.state, number)
        tensors.exponentiate(f"{folder}.A_log")
        give(tensors, f"{folder}.A_log", Role.STATE_RATE, number)
        give(tensors, f"{folder}.dt_bias", Role.STATE_DECAY_BIAS, number)
        give(tensors, f"{folder}.norm.weight", Role.STATE_NORM, number)
        give(tensors, f"{folder}.out_proj.weight", Role.STATE_OUT, number)
    for number, experts in layers_of_experts(config):
        stack_hf_experts(tensors, number, experts)
        tensors.flatten(tensors.usual(Role.SHARED_ROUTER, number), dims=2)


def split_queries(tensors: Rearranged, name: str, attention: Attention, number: int) -> None:
    """Split the queries and the gate, which are interleaved by head."""

    def parts(rows: Rows) -> dict[str, Rows]:
        heads = rows.reshape(attention.n_heads, 2, attention.head_dim)
        return {
            tensors.usual(role, number): heads[:, part].reshape(-1)
            for part, role in enumerate((Role.ATTN_Q, Role.ATTN_GATE))
        }

    tensors.take_rows(name, 2 * attention.n_heads * attention.head_dim, parts)


def split_mixed(tensors: Rearranged, name: str, state: GatedDelta, number: int) -> None:
    """Split the mixed projection, which has q, k, v and z grouped by key head."""
    values = state.inner // state.n_key_heads

    def parts(rows: Rows) -> dict[str, Rows]:
        heads = rows.reshape(state.n_key_heads, -1)
        q, k, v, z = np.split(heads, np.cumsum([state.key_dim, state.key_dim, values]), axis=1)
        return {
            tensors.usual(Role.STATE_IN, number): np.concatenate([q, k, v], axis=None),
            tensors.usual(Role.STATE_GATE, number): z.reshape(-1),
        }

    tensors.take_rows(name, state.channels + state.inner, parts)


def split_rates(tensors: Rearranged, name: str, state: GatedDelta, number: int) -> None:
    """Split the rates' projection, which has b and a grouped by key head."""

    def parts(rows: Rows) -> dict[str, Rows]:
        heads = rows.reshape(state.n_key_heads, 2, -1)
        return {
            tensors.usual(role, number): heads[:, part].reshape(-1)
            for part, role in enumerate((Role.STATE_BETA, Role.STATE_DECAY))
        }

    tensors.take_rows(name, 2 * state.n_heads, parts)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors; older files have all inputs of states fused."""
    gguf_named(tensors, config)
    for number, layer in enumerate(config.layers):
        if isinstance(layer.state, GatedDelta):
            split_rates(tensors, f"blk.{number}.ssm_ba.weight", layer.state, number)
    flatten_gguf_experts(tensors, config)


def gguf_named(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename the tensors of the layers that the file counts."""
    tensors.drop_layers_from(config.n_layers)
    gguf_post_attention_norm(tensors, config)
    for number, layer in enumerate(config.layers):
        folder = f"blk.{number}"
        if layer.attention is not None:
            queries = tensors.usual(Role.ATTN_Q, number)
            split_queries(tensors, queries, layer.attention, number)
        if isinstance(layer.state, GatedDelta):
            if f"{folder}.attn_qkv.weight" in tensors.out:
                give(tensors, f"{folder}.attn_qkv.weight", Role.STATE_IN, number)
                give(tensors, f"{folder}.attn_gate.weight", Role.STATE_GATE, number)
            else:
                whole = f"{folder}.ssm_in.weight"
                split_mixed(tensors, whole, layer.state, number)
            give_conv(tensors, f"{folder}.ssm_conv1d.weight", layer.state, number)


FAMILY = Family(
    "qwen3_next",
    program,
    "qwen3next",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
    has_mtp=True,
)
