"""What the files of every family say, how their tensors are called, and the programs they mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from family_files import (
    EXPERT_PARTS,
    EXPERTS,
    FFN,
    HEAD,
    HIDDEN,
    PLAIN,
    Arrays,
    Family,
    merged,
    renamed,
)

from lanewise.loading.formats import round_to_f32 as f32
from lanewise.loading.program import Attention, Experts, Gated, Layer, Rope


def both(attention: Attention, ffn: Gated | Experts) -> tuple[Layer, ...]:
    return (Layer(attention, ffn), Layer(attention, ffn))


def second(attention: Attention, ffn: Experts) -> tuple[Layer, ...]:
    """A gated layer and one of experts."""
    return (Layer(attention, Gated(FFN)), Layer(attention, ffn))


MOE_KEYS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
MOE_CONFIG = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
HEADS = replace(PLAIN, qk_norm="head")
BIASED = replace(PLAIN, qkv_bias=True)
SCALED = replace(PLAIN, score_scale=f32(0.1))
MULTIPLIERS = {"embedding_scale": 12.0, "residual_scale": f32(0.22), "logit_scale": 0.125}
GRANITE_CONFIG = {
    "attention_multiplier": 0.1,
    "embedding_multiplier": 12,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
GRANITE_KEYS = {
    "attention.scale": 0.1,
    "embedding_scale": 12.0,
    "residual_scale": 0.22,
    "logit_scale": 8.0,
}
CLAMPED = Experts(
    n=4,
    n_used=2,
    size=32,
    router="top_softmax",
    router_bias=True,
    activation="clamped",
    limit=7.0,
    alpha=f32(1.702),
    bias=True,
)
SINKS = replace(PLAIN, qkv_bias=True, output_bias=True, sinks=True)
NORM = (".ffn_norm.", ".post_attention_norm.")
SHARED = (".shared_expert.", ".shared_experts.")


def mixtral_hf(arrays: Arrays) -> Arrays:
    arrays = renamed(arrays, (".mlp.", ".block_sparse_moe."))
    return renamed(arrays, ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))


def qwen2_moe_hf(arrays: Arrays) -> Arrays:
    return {n: a[None] if "expert_gate" in n else a for n, a in arrays.items()}


def ernie_hf(arrays: Arrays) -> Arrays:
    bias = ("gate.e_score_correction_bias", "moe_statics.e_score_correction_bias")
    found = renamed(arrays, bias, SHARED)
    further = {"model.mtp_block.0.norm.weight": np.zeros(4, np.float32)}
    return {n: a[None] if "moe_statics" in n else a for n, a in found.items()} | further


def ernie_gguf(arrays: Arrays) -> Arrays:
    """The public converter leaves the bias one row of a matrix."""
    return {n: a[None] if "exp_probs_b" in n else a for n, a in arrays.items()}


def glm_hf(arrays: Arrays) -> Arrays:
    further = {"model.layers.2.eh_proj.weight": np.zeros((4, 4), np.float32)}
    return renamed(arrays, SHARED) | further


def glm_gguf(arrays: Arrays) -> Arrays:
    further = {"blk.2.nextn.eh_proj.weight": np.zeros((4, 4), np.float32)}
    return renamed(arrays, NORM) | further


def granitemoe_hf(arrays: Arrays) -> Arrays:
    found = stacked(arrays)
    found = merged(found, "input_linear.weight", "experts.gate_proj", "experts.up_proj")
    return renamed(
        found,
        (".mlp.gate.", ".block_sparse_moe.router.layer."),
        (".mlp.input", ".block_sparse_moe.input"),
        (".mlp.experts.down_proj", ".block_sparse_moe.output_linear.weight"),
    )


def stacked(arrays: Arrays) -> Arrays:
    """All experts of a layer in one tensor of three dimensions."""
    found = {name: array for name, array in arrays.items() if ".experts." not in name}
    for layer in range(2):
        for part in EXPERT_PARTS.values():
            prefix = f"model.layers.{layer}.mlp.experts."
            each = [arrays.get(f"{prefix}{number}.{part}.weight") for number in range(4)]
            matrices = [array for array in each if array is not None]
            if matrices:
                found[f"{prefix}{part}"] = np.stack(matrices)
    return found


def gpt_oss_hf(arrays: Arrays) -> Arrays:
    """Gate and up in turns, inputs first."""
    found = {n: a for n, a in arrays.items() if ".experts." not in n}
    experts = stacked({n: a for n, a in arrays.items() if not n.endswith(".bias")})
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts."
        gate, up = (experts[f"{prefix}{part}_proj"] for part in ("gate", "up"))
        both = np.stack([gate, up], axis=2).reshape(4, -1, HIDDEN)
        found[f"{prefix}gate_up_proj"] = both.swapaxes(1, 2)
        found[f"{prefix}down_proj"] = experts[f"{prefix}down_proj"].swapaxes(1, 2)
        gate, up = (arrays[f"{prefix}{part}_proj.bias"] for part in ("gate", "up"))
        found[f"{prefix}gate_up_proj_bias"] = np.stack([gate, up], axis=1).reshape(4, -1)
        found[f"{prefix}down_proj_bias"] = arrays[f"{prefix}down_proj.bias"].reshape(4, -1)
    return renamed(found, (".mlp.gate.", ".mlp.router."))


def phi_hf(arrays: Arrays) -> Arrays:
    found = merged(arrays, "self_attn.qkv_proj", *(f"self_attn.{x}_proj" for x in "qkv"))
    return merged(found, "mlp.gate_up_proj", "mlp.gate_proj", "mlp.up_proj")


def phi_gguf(arrays: Arrays) -> Arrays:
    found = merged(arrays, ".attn_qkv.weight", *(f".attn_{x}.weight" for x in "qkv"))
    found = merged(found, ".ffn_fused.", ".ffn_gate.", ".ffn_up.")
    factors = {f"rope_factors_{n}.weight": np.full(6, v, "f4") for n, v in LONG.items()}
    return renamed(found, (".ffn_fused.", ".ffn_up.")) | factors


LONG = {"long": 1.5, "short": 1.25}
LONG_SCALE = f32(float(np.sqrt(1 + np.log(2) / np.log(128))))
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
YARN_KEYS = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
# The ramp of HEAD dimensions, theta 10000 and a context of 64 goes from 0, above floor(-0.99), to
# ceil(2.02).
YARN_FACTORS = tuple(f32(1 / ((1 - r) + r / 4)) for r in (0, 1 / 3, 2 / 3, 1, 1, 1, 1, 1))
# The same without rounding the ends, of which the first is below 0.
END = 16 * np.log(64 / (2 * np.pi)) / (2 * np.log(10000))
RAW_FACTORS = tuple(f32(1 / ((1 - r) + r / 4)) for r in (min(i / END, 1.0) for i in range(8)))
YARN_SCALE = f32(0.1 * float(np.log(4)) + 1)

FAMILIES = {
    family.name: family
    for family in (
        Family("llama", "llama", both(BIASED, Gated(FFN)), gguf_interleaved=True),
        Family(
            "mixtral",
            "llama",
            both(PLAIN, replace(EXPERTS, size=96, renormalize=True)),
            {"num_local_experts": 4, "num_experts_per_tok": 2},
            {"expert_count": 4, "expert_used_count": 2},
            hf=mixtral_hf,
            gguf_interleaved=True,
        ),
        Family(
            "qwen2",
            None,
            (Layer(BIASED, Gated(FFN)), Layer(replace(BIASED, window=32), Gated(FFN))),
            {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1},
        ),
        Family(
            "qwen3",
            "qwen3",
            both(HEADS, Gated(FFN)),
            {"head_dim": HEAD, "rope_scaling": YARN},
            YARN_KEYS,
            Rope(10000.0, HEAD, YARN_FACTORS, YARN_SCALE),
        ),
        Family(
            "qwen3_moe",
            "qwen3moe",
            second(HEADS, replace(EXPERTS, renormalize=True)),
            MOE_CONFIG | {"norm_topk_prob": True, "mlp_only_layers": [0]},
            MOE_KEYS,
        ),
        Family(
            "qwen2_moe",
            "qwen2moe",
            second(BIASED, replace(EXPERTS, shared_size=64, shared_gate=True)),
            MOE_CONFIG | {"shared_expert_intermediate_size": 64, "decoder_sparse_step": 2},
            MOE_KEYS | {"expert_shared_feed_forward_length": 64},
            hf=qwen2_moe_hf,
        ),
        Family(
            "olmoe",
            "olmoe",
            both(replace(PLAIN, qk_norm="whole"), replace(EXPERTS, size=96)),
            {"num_experts": 4, "num_experts_per_tok": 2},
            {"expert_count": 4, "expert_used_count": 2},
        ),
        Family(
            "granite",
            "granite",
            both(SCALED, Gated(FFN)),
            GRANITE_CONFIG,
            GRANITE_KEYS,
            changes=MULTIPLIERS,
            gguf_interleaved=True,
        ),
        Family(
            "granitemoe",
            "granitemoe",
            both(SCALED, replace(EXPERTS, size=96, router="top_softmax")),
            GRANITE_CONFIG | {"num_local_experts": 4, "num_experts_per_tok": 2},
            GRANITE_KEYS | {"expert_count": 4, "expert_used_count": 2},
            changes=MULTIPLIERS,
            hf=granitemoe_hf,
            gguf_interleaved=True,
        ),
        Family(
            "ernie4_5",
            "ernie4_5",
            both(PLAIN, Gated(FFN)),
            {"head_dim": HEAD, "use_bias": False},
            gguf_interleaved=True,
            hf_interleaved=True,
        ),
        Family(
            "ernie4_5_moe",
            "ernie4_5-moe",
            second(
                PLAIN,
                replace(
                    EXPERTS,
                    choice_bias=True,
                    renormalize=True,
                    denominator_least=f32(1e-12),
                    shared_size=64,
                ),
            ),
            {
                "moe_num_experts": 4,
                "moe_k": 2,
                "moe_intermediate_size": 32,
                "moe_num_shared_experts": 2,
                "moe_layer_start_index": 1,
                "moe_layer_end_index": -1,
                "moe_layer_interval": 1,
                "moe_capacity": [64, 64, 64],
            },
            MOE_KEYS | {"leading_dense_block_count": 1, "expert_shared_count": 2},
            hf=ernie_hf,
            gguf=ernie_gguf,
            gguf_interleaved=True,
            hf_interleaved=True,
        ),
        Family(
            "glm4_moe",
            "glm4moe",
            second(
                replace(HEADS, qkv_bias=True),
                Experts(
                    n=4,
                    n_used=2,
                    size=32,
                    router="sigmoid",
                    choice_bias=True,
                    groups=2,
                    groups_used=1,
                    renormalize=True,
                    denominator_eps=f32(1e-20),
                    scale=2.5,
                    shared_size=32,
                ),
            ),
            {
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "n_shared_experts": 1,
                "n_group": 2,
                "topk_group": 1,
                "norm_topk_prob": True,
                "routed_scaling_factor": 2.5,
                "first_k_dense_replace": 1,
                "use_qk_norm": True,
                "attention_bias": True,
                "partial_rotary_factor": 0.5,
                "num_nextn_predict_layers": 1,
            },
            MOE_KEYS
            | {
                "block_count": 3,
                "nextn_predict_layers": 1,
                "expert_gating_func": 2,
                "expert_group_count": 2,
                "expert_group_used_count": 1,
                "expert_weights_norm": True,
                "expert_weights_scale": 2.5,
                "expert_shared_count": 1,
                "leading_dense_block_count": 1,
                "rope.dimension_count": HEAD // 2,
            },
            Rope(10000.0, HEAD // 2),
            hf=glm_hf,
            gguf=glm_gguf,
        ),
        Family(
            "gpt_oss",
            "gpt-oss",
            (Layer(replace(SINKS, window=32), CLAMPED), Layer(SINKS, CLAMPED)),
            {
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "intermediate_size": 32,
                "head_dim": HEAD,
                "sliding_window": 32,
                "layer_types": ["sliding_attention", "full_attention"],
                "attention_bias": True,
                "swiglu_limit": 7.0,
                "rope_scaling": YARN | {"truncate": False, "beta_fast": 32.0, "beta_slow": 1.0},
            },
            MOE_KEYS | YARN_KEYS | {"attention.sliding_window": 32},
            Rope(10000.0, HEAD, RAW_FACTORS, YARN_SCALE),
            hf=gpt_oss_hf,
            gguf=lambda arrays: renamed(arrays, NORM),
        ),
        Family(
            "phi3",
            "phi3",
            both(replace(PLAIN, window=64), Gated(FFN)),
            {
                "partial_rotary_factor": 0.75,
                "original_max_position_embeddings": 128,
                "sliding_window": 64,
                "rope_scaling": {
                    "type": "longrope",
                    "long_factor": [1.5] * 6,
                    "short_factor": [1.25] * 6,
                },
            },
            {
                "rope.dimension_count": 12,
                "rope.scaling.original_context_length": 128,
                "rope.scaling.attn_factor": LONG_SCALE,
                "attention.sliding_window": 64,
            },
            Rope(10000.0, 12, (1.5,) * 6, LONG_SCALE, (1.25,) * 6, 128),
            hf=phi_hf,
            gguf=phi_gguf,
        ),
        Family(
            "ministral3",
            "mistral3",
            both(replace(PLAIN, position_scale=(f32(0.1), 64)), Gated(FFN)),
            {
                "head_dim": HEAD,
                "rope_parameters": YARN
                | {"rope_theta": 10000.0, "mscale": 1.0, "mscale_all_dim": 1.0}
                | {"llama_4_scaling_beta": 0.1},
            },
            YARN_KEYS
            | {"rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.1},
            Rope(10000.0, HEAD, YARN_FACTORS),
            gguf_interleaved=True,
        ),
        Family(
            "smollm3",
            "smollm3",
            both(PLAIN, Gated(FFN)),
            {"no_rope_layer_interval": 4, "max_window_layers": 28},
            gguf_interleaved=True,
        ),
        Family(
            "seed_oss",
            "seed_oss",
            both(BIASED, Gated(FFN)),
            {"head_dim": HEAD, "attention_bias": True, "attention_out_bias": False},
            gguf=lambda arrays: renamed(arrays, NORM),
        ),
    )
}
