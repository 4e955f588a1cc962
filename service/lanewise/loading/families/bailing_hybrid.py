"""Ling 3: Kimi Delta Attention with bounded decays beside gated latent attention, experts."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.recurrences import ChannelDelta
from lanewise.loading.families.common import (
    check_activation,
    check_values,
    model_of,
    trunk_layers_of,
)
from lanewise.loading.families.deepseek_v3 import first_sparse_of
from lanewise.loading.families.experts import (
    flatten_gguf_experts,
    routed_experts_of,
    sparse_from,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.kimi_delta import (
    KINDS,
    NAMES,
    delta_layers,
    gguf_delta_tensors,
    hf_delta_tensors,
)
from lanewise.loading.families.latent import gguf_latent_tensors, latent_attention_of
from lanewise.loading.families.naming import rename_attention_gates
from lanewise.loading.families.states import check_no_bias, every_nth, gguf_heads, own_kinds
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

STEP, THETA, FLOOR = 6, 6e6, -5.0  # layers of a group, base of RoPE, bound of decays by default
MUST_BE = {"score_function": ("sigmoid",), "topk_method": ("noaux_tc",)}
# What Ling 2.5 and Ring 2.5 have, whose model_type is the same.
OF_LIGHTNING = ("group_norm_size", "linear_silu", "linear_rope")
# The makers' parts of tensors' names to transformers'.
PARTS = {
    ".attention.": ".self_attn.",
    ".self_attn.dense.": ".self_attn.o_proj.",
    ".mlp.gate.expert_bias": ".mlp.gate.e_score_correction_bias",
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    n_layers, heads = trunk_layers_of(file), file.integer("num_attention_heads")
    attending = file
    if file.is_gguf:
        attending, has_attention = gguf_heads(file)
        kinds = [KINDS[attends] for attends in has_attention[:n_layers]]
        dim, taps = file.integer("{arch}.kda.head_dim"), file.integer("linear_conv_kernel_dim")
        floor = floor_of(file, "{arch}.kda.safe_gate", "{arch}.kda.gate_lower_bound")
    else:
        for key in OF_LIGHTNING:
            if file.is_set(key):
                raise file.fail(key, "null (lightning attention of Ling 2.5 is not supported)")
        check_values(file, MUST_BE)
        check_no_bias(file, "use_bias", "use_qkv_bias")
        attending = file = file.called_if_set(NAMES).called_if_set(
            {"n_routed_experts": "num_experts"}
        )
        usual = every_nth(n_layers, file.integer("layer_group_size", default=STEP), KINDS)
        kinds = own_kinds(file, "layer_types", KINDS, n_layers, usual)
        # Where transformers wrote the config, head_dim is that of rotated dimensions.
        dim = file.integer("linear_head_dim", default=file.integer("head_dim", default=128))
        taps = file.integer("short_conv_kernel_size", default=4)
        taps = file.integer("linear_conv_kernel_dim", default=taps)
        heads = file.integer("linear_num_heads", default=heads)
        floor = floor_of(file, "kda_safe_gate", "kda_lower_bound")
    check_activation(file)
    state = ChannelDelta(taps, heads, dim, heads, dim, decay_floor=floor)
    attention = replace(latent_attention_of(attending), head_gate=True)
    experts = routed_experts_of(file, "sigmoid", renormalize=True)
    sparse = sparse_from(file, first_sparse_of(file, default=2))
    layers = delta_layers(file, state, attention, kinds, experts, sparse)
    return model_of(file, "bailing_hybrid", layers, theta=THETA, own_kinds=True)


def floor_of(file: ModelFile, is_bounded: str, bound: str) -> float:
    """Return minus the logarithm of the smallest decay, or 0 if decays have no bound."""
    floor = file.meant(bound)
    if not file.flag(is_bounded, default=True):
        return 0.0
    floor = FLOOR if floor is None else floor
    if not isinstance(floor, int | float) or not -80 <= floor < 0:
        raise file.fail(bound, "a number from -80 to below 0")
    return round_to_f32(-float(floor))


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors, stack experts; drop the multi-token prediction layers."""
    tensors.drop_layers_from(config.n_layers)
    for name in list(tensors.out):
        new = name
        for part, usual in PARTS.items():
            new = new.replace(part, usual)
        tensors.rename(name, new)
    hf_delta_tensors(tensors, config)
    rename_attention_gates(tensors, config)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename the tensors of states, whose rates are positive; reshape heads and experts."""
    tensors.drop_layers_from(config.n_layers)
    for number in range(config.n_layers):
        for old, new in (("ssm_f_a", "ssm_f_b"), ("ssm_g_a", "ssm_g_b")):  # of full rank
            tensors.rename(f"blk.{number}.{old}.weight", f"blk.{number}.{new}.weight")
        tensors.ravel(f"blk.{number}.ssm_a")
        tensors.multiply_rows(f"blk.{number}.ssm_a", -1.0)
    gguf_delta_tensors(tensors, config)
    gguf_latent_tensors(tensors, config)
    rename_attention_gates(tensors, config)
    flatten_gguf_experts(tensors, config)


FAMILY = Family(
    "bailing_hybrid",
    program,
    "bailingmoe3",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
