"""Kimi Delta Attention: its tensors' names, and layers of it beside latent attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Attention, Experts, Layer, ModelConfig
from lanewise.loading.base.recurrences import ChannelDelta
from lanewise.loading.families.common import gated_of
from lanewise.loading.families.experts import (
    PARTS,
    layers_of_experts,
    rename_shared,
    stack_hf_experts,
)
from lanewise.loading.families.latent import split_keys_and_values
from lanewise.loading.families.states import Mixer, give, layers_of
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

KINDS = ("linear_attention", "full_attention")
# Makers' names of fields that transformers has other names for.
NAMES = {
    "n_routed_experts": "num_local_experts",
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
MIXTURE = ".block_sparse_moe."  # the FFN's folder in Moonshot's files
MOONSHOT = ("w1", "w3", "w2")  # names of experts' gate, up and down there
FORGET = "forget_gate."  # in front of what makes decays, where transformers wrote the file
# Names of a state's tensors in a layer's folder of attention, in directories.
HF_NAMES = {
    "q_proj.weight": Role.STATE_IN,
    "k_proj.weight": Role.STATE_KEYS,
    "v_proj.weight": Role.STATE_VALUES,
    "f_proj.weight": Role.STATE_DECAY,
    "f_a_proj.weight": Role.STATE_DECAY_DOWN,
    "f_b_proj.weight": Role.STATE_DECAY,
    "g_proj.weight": Role.STATE_GATE,
    "g_a_proj.weight": Role.STATE_GATE_DOWN,
    "g_b_proj.weight": Role.STATE_GATE,
    "b_proj.weight": Role.STATE_BETA,
    "dt_bias": Role.STATE_DECAY_BIAS,
    "A_log": Role.STATE_RATE,
    "o_norm.weight": Role.STATE_NORM,
    "o_proj.weight": Role.STATE_OUT,
}
# The same in a layer's folder of GGUF files, where they are not the usual ones.
GGUF_NAMES = {
    "attn_q.weight": Role.STATE_IN,
    "attn_k.weight": Role.STATE_KEYS,
    "attn_v.weight": Role.STATE_VALUES,
    "attn_output.weight": Role.STATE_OUT,
    "ssm_f_b.weight": Role.STATE_DECAY,
    "ssm_g_b.weight": Role.STATE_GATE,
}


def delta_layers(
    file: ModelFile,
    state: ChannelDelta,
    attention: Attention,
    kinds: Sequence[str],
    experts: Experts,
    is_sparse: Sequence[bool],
) -> list[Layer]:
    """Return layers of the given ``kinds``.

    Experts are where ``is_sparse`` says, in GGUF where there is a router.
    """
    if file.is_gguf:
        is_sparse = [file.has(Role.ROUTER, number) for number in range(len(kinds))]
    gated = None if all(is_sparse) else gated_of(file)
    ffns = [experts if sparse or gated is None else gated for sparse in is_sparse]
    mixers: Mapping[str, Mixer] = dict(zip(KINDS, (state, attention), strict=True))
    return layers_of(mixers, kinds, ffns)


def hf_delta_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename the tensors of a directory, stack experts, split keys and values of latents."""
    for name in list(tensors.out):
        tensors.rename(name, name.replace(MIXTURE, ".mlp."))
    for number, layer in enumerate(config.layers):
        folder = f"model.layers.{number}.self_attn."
        if isinstance(layer.state, ChannelDelta):
            for name, role in HF_NAMES.items():
                tensors.rename(f"{folder}{FORGET}{name}", folder + name)
                give(tensors, folder + name, role, number)
            name = tensors.usual(Role.STATE_RATE, number)
            tensors.ravel(name)
            tensors.exponentiate(name)
            join_convolutions(tensors, f"{folder}{{}}_conv1d.weight", layer.state, number)
        elif layer.attention is not None:
            if layer.attention.query_rank:
                give(tensors, f"{folder}q_b_proj.weight", Role.ATTN_Q, number)
            split_keys_and_values(tensors, f"{folder}kv_b_proj.weight", layer.attention, number)
    for number, experts in layers_of_experts(config):
        own = f"model.layers.{number}.mlp.experts.0.w1.weight" in tensors.out
        stack_hf_experts(tensors, number, experts, names=MOONSHOT if own else PARTS)
        rename_shared(tensors, number, "mlp.shared_experts")


def join_convolutions(tensors: Rearranged, names: str, state: ChannelDelta, number: int) -> None:
    """Make one vector of the taps of q, k and v, which ``names`` has in this order."""
    parts = [names.format(part) for part in "qkv"]
    for part in parts:
        tensors.ravel(part, state.taps)
    tensors.stack(parts, tensors.usual(Role.STATE_CONV, number))
    whole = names.replace("{}_", "").format()  # as transformers has them while a model runs
    tensors.ravel(whole, state.taps)
    give(tensors, whole, Role.STATE_CONV, number)


def gguf_delta_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename the tensors of states in a GGUF file."""
    for number, layer in enumerate(config.layers):
        if not isinstance(layer.state, ChannelDelta):
            continue
        folder, keys = f"blk.{number}.", layer.state.n_key_heads * layer.state.key_dim
        rows = {"attn_q": keys, "attn_k": keys, "attn_v": layer.state.inner}
        fused = {f"{folder}{name}.weight": n for name, n in rows.items()}
        tensors.split_rows(f"{folder}attn_qkv.weight", fused)
        for name, role in GGUF_NAMES.items():
            give(tensors, folder + name, role, number)
        tensors.ravel(tensors.usual(Role.STATE_RATE, number))
        parts = [f"{folder}ssm_conv1d_{part}.weight" for part in "qkv"]
        for part in parts:
            tensors.flatten(part, dims=4)
            tensors.ravel(part)
        tensors.stack(parts, tensors.usual(Role.STATE_CONV, number))


def without_positions(attention: Attention) -> Attention:
    """Return attention that turns nothing, whose scores have the usual scale."""
    return replace(attention, rope=None, score_scale=0.0)
