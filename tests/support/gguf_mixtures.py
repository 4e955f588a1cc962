"""How the cases of data/configs/mixtures.json become GGUF files."""

from __future__ import annotations

from typing import Any

import numpy as np

from family_models import Arrays
from gguf_conversion import Conversion, bias_of_choice, expert_metadata, granite_metadata
from published_configs import Config


def minimax_metadata(config: Config) -> dict[str, Any]:
    return expert_metadata(config) | {
        "expert_gating_func": 2,
        "expert_feed_forward_length": config["intermediate_size"],
        "rope.dimension_count": config["rotary_dim"],
    }


def minimax_m3_metadata(config: Config) -> dict[str, Any]:
    return expert_metadata(config) | {
        "feed_forward_length": config["dense_intermediate_size"],
        "expert_gating_func": 2,
        "expert_feed_forward_length": config["intermediate_size"],
        "expert_weights_norm": True,
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_shared_count": 1,
        "leading_dense_block_count": config["mlp_layer_types"].index("sparse"),
        "rope.dimension_count": config["rotary_dim"],
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk_blocks"],
        "attention.indexer.block_size": config["index_block_size"],
        "attention.indexer.local_blocks": config["index_local_blocks"],
    }


M3_NAMES = {
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp",
    "mlp.down_proj.weight": "ffn_down",
}


def minimax_m3_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Norms one larger; gate, up and the index by the names of the file."""
    found: Arrays = {}
    for name, array in bias_of_choice(arrays, config).items():
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        if name.endswith("norm.weight"):
            array = array + np.float32(1)
        if "self_attn.indexer." in name:
            found[f"blk.{layer}.{rest.removeprefix('self_attn.')}"] = np.asarray(array)
            continue
        if "gate_up_proj" in name:
            ending = "_shexp" if "shared" in name else "_exps" if "experts" in name else ""
            halves = np.split(array, 2, axis=1 if ending == "_exps" else 0)
            for part, half in zip(("gate", "up"), halves, strict=True):
                found[f"blk.{layer}.ffn_{part}{ending}.weight"] = np.asarray(half)
            continue
        own = M3_NAMES.get(rest)
        found[f"blk.{layer}.{own}.weight" if own else name] = np.asarray(array)
    return found


def granite_swa_metadata(config: Config) -> dict[str, Any]:
    return (
        granite_metadata(config)
        | pattern_metadata(config)
        | {
            "attention.sliding_window": config["sliding_window"],
            "attention.rope_pattern": [theta != 0 for theta in config["layer_rope_theta"]],
        }
    )


def granitemoe_swa_metadata(config: Config) -> dict[str, Any]:
    shared = {"expert_shared_feed_forward_length": config["shared_intermediate_size"]}
    return granite_swa_metadata(config) | expert_metadata(config) | shared


GRANITE_NAMES = {
    "self_attn.sinks": "attn_sinks",
    "shared_mlp.input_linear.weight": "ffn_up_shexp",
    "shared_mlp.output_linear.weight": "ffn_down_shexp",
    "block_sparse_moe.router.weight": "ffn_gate_inp",
    "block_sparse_moe.experts.gate_up_proj": "ffn_gate_up_exps",
    "block_sparse_moe.experts.down_proj": "ffn_down_exps",
}


def granite_swa_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Gate and up in one, of the shared expert and of the others."""
    del config
    found: Arrays = {}
    for name, array in arrays.items():
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        own = GRANITE_NAMES.get(rest)
        found[f"blk.{layer}.{own}.weight" if own else name] = array
    return found


def kinds_metadata(config: Config) -> dict[str, Any]:
    """Of windows and angles by kind of layer; the period that is usual needs no pattern."""
    ropes = config["rope_parameters"]
    full, sliding = (ropes[f"{kind}_attention"] for kind in ("full", "sliding"))
    original = full["original_max_position_embeddings"]
    return {
        "attention.sliding_window": config["sliding_window"],
        "rope.freq_base": full["rope_theta"],
        "rope.freq_base_swa": sliding["rope_theta"],
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": full["factor"],
        "rope.scaling.original_context_length": original,
        "rope.scaling.yarn_beta_fast": full["beta_fast"],
        "rope.scaling.yarn_beta_slow": full["beta_slow"],
        "rope.dimension_count": int(config["head_dim"] * full.get("partial_rotary_factor", 1)),
    }


def pattern_metadata(config: Config) -> dict[str, Any]:
    kinds = config["layer_types"]
    pattern = [kind == "sliding_attention" for kind in kinds]
    return {"attention.sliding_window_pattern": pattern}


def mellum_metadata(config: Config) -> dict[str, Any]:
    return expert_metadata(config) | kinds_metadata(config) | pattern_metadata(config)


def laguna_metadata(config: Config) -> dict[str, Any]:
    return (
        expert_metadata(config)
        | kinds_metadata(config)
        | {
            "attention.head_count": config["num_attention_heads_per_layer"],
            "rope.dimension_count_swa": config["head_dim"],
            "expert_gating_func": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": config["moe_routed_scaling_factor"],
            "expert_shared_count": 1,
            "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
            "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
        }
    )


def laguna_odd_metadata(config: Config) -> dict[str, Any]:
    return laguna_metadata(config) | pattern_metadata(config)


def laguna_values_metadata(config: Config) -> dict[str, Any]:
    keys = laguna_metadata(config)
    return {key: keys[key] for key in keys if "swa" not in key and "sliding" not in key}


def laguna_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Gates by the name of the file."""
    found: Arrays = {}
    for name, array in bias_of_choice(arrays, config).items():
        layer = name.removeprefix("model.layers.").partition(".")[0]
        is_gate = name.endswith(".g_proj.weight")
        name = name.replace(".experts.e_score", ".gate.e_score")
        found[f"blk.{layer}.attn_gate.weight" if is_gate else name] = np.asarray(array)
    return found


def bailing_metadata(config: Config) -> dict[str, Any]:
    return expert_metadata(config) | {
        "rope.dimension_count": int(config["head_dim"] * config["partial_rotary_factor"]),
        "rope.freq_base": float(config["rope_theta"]),
        "expert_gating_func": 2,
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_shared_count": config["num_shared_experts"],
        "leading_dense_block_count": config["first_k_dense_replace"],
        "nextn_predict_layers": 0,
    }


def bailing_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Q, K and V in one, as directories of the makers have them."""
    found = bias_of_choice(arrays, config)
    for layer in range(config["num_hidden_layers"]):
        folder = f"model.layers.{layer}"
        parts = [found.pop(f"{folder}.self_attn.{part}_proj.weight") for part in "qkv"]
        found[f"{folder}.attention.query_key_value.weight"] = np.concatenate(parts)
    return found


def step_metadata(config: Config) -> dict[str, Any]:
    """Layers without a window turn half of the dimensions that the file says."""
    n = config["num_hidden_layers"]
    kinds = config["layer_types"][:n]
    windowed = [kind == "sliding_attention" for kind in kinds]
    other = config["attention_other_setting"]["num_attention_heads"]
    return expert_metadata(config) | {
        "attention.head_count": [other if w else config["num_attention_heads"] for w in windowed],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": windowed,
        "rope.freq_base": config["rope_theta"][0],
        "rope.freq_base_swa": config["rope_theta"][1],
        "rope.dimension_count": config["head_dim"],
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": config["moe_router_scaling_factor"],
        "expert_shared_feed_forward_length": config["share_expert_dim"],
        "swiglu_clamp_exp": config["swiglu_limits"][:n],
        "swiglu_clamp_shexp": config["swiglu_limits_shared"][:n],
    }


def step_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Norms one larger; gates, experts and their bias by the names of the file."""
    del config
    names = {
        "self_attn.g_proj.weight": "attn_gate.weight",
        "moe.gate.weight": "ffn_gate_inp.weight",
        "moe.router_bias": "exp_probs_b.bias",
        "moe.gate_proj.weight": "ffn_gate_exps.weight",
        "moe.up_proj.weight": "ffn_up_exps.weight",
        "moe.down_proj.weight": "ffn_down_exps.weight",
        "share_expert.gate_proj.weight": "ffn_gate_shexp.weight",
        "share_expert.up_proj.weight": "ffn_up_shexp.weight",
        "share_expert.down_proj.weight": "ffn_down_shexp.weight",
    }
    found: Arrays = {}
    for name, array in arrays.items():
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        if "vision" in name or "projector" in name:
            continue
        if name.endswith("norm.weight"):
            array = array + np.float32(1)
        found[f"blk.{layer}.{names[rest]}" if rest in names else name] = array
    return found


LAGUNA = {"named_as": "dots1", "reshape": laguna_arrays}
MIXTURES: dict[str, Conversion] = {
    "minimax_m2": Conversion("minimax-m2", reshape=bias_of_choice, metadata=minimax_metadata),
    "minimax_m3_odd": Conversion(
        "minimax-m3",
        named_as="minimax-m2",
        reshape=minimax_m3_arrays,
        metadata=minimax_m3_metadata,
    ),
    "bailing_moe": Conversion("bailingmoe2", reshape=bailing_arrays, metadata=bailing_metadata),
    "step3p7": Conversion("step35", reshape=step_arrays, metadata=step_metadata),
    "mellum": Conversion("mellum", named_as="qwen3moe", metadata=mellum_metadata),
    "laguna": Conversion("laguna", metadata=laguna_metadata, **LAGUNA),
    "laguna_values": Conversion("laguna", metadata=laguna_values_metadata, **LAGUNA),
    "laguna_odd": Conversion("laguna", metadata=laguna_odd_metadata, **LAGUNA),
    "granite_swa": Conversion(
        "granite_swa",
        named_as="granite",
        permuted=True,
        reshape=granite_swa_arrays,
        metadata=granite_swa_metadata,
    ),
    "granitemoe_swa": Conversion(
        "granite_swa",
        named_as="granitemoe",
        permuted=True,
        reshape=granite_swa_arrays,
        metadata=granitemoe_swa_metadata,
    ),
}
MIXTURES["minimax_m2_odd"] = MIXTURES["minimax_m2"]
