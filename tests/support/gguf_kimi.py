"""Families with Kimi Delta Attention as GGUF files."""

from __future__ import annotations

from typing import Any

import numpy as np

from family_models import Arrays
from gguf_conversion import Conversion
from gguf_latent import head_metadata, split_heads
from published_configs import Config


def kimi_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Convolutions with four dimensions, rates for their logarithms, latents split by head."""
    found: Arrays = {}
    for name, array in split_heads(arrays, config).items():
        if "_conv1d" in name:
            array = array[None, :, :]
        if name.endswith(".A_log"):
            array = -np.exp(array.astype("f8")).astype("f4")
        if not any(part in name for part in (".experts.", ".gate.", "shared_experts")):
            name = name.replace(".block_sparse_moe.", ".mlp.")  # of a dense layer
        found[name.replace(".dt_bias", ".dt_proj.bias")] = array
    return found


def kimi_metadata(config: Config) -> dict[str, Any]:
    own = config["linear_attn_config"]
    return delta_metadata(config, own["head_dim"], own["short_conv_kernel_size"]) | {
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_token"],
        "expert_group_count": config["num_expert_group"],
        "expert_shared_count": config["num_shared_experts"],
    }


def delta_metadata(config: Config, dim: int, taps: int) -> dict[str, Any]:
    """What both have: the heads of a layer are those of latents, and none where it has a state."""
    keys = head_metadata(config)
    for name in ("key", "value"):
        keys[f"attention.{name}_length_mla"] = keys[f"attention.{name}_length"]
    return keys | {
        "attention.head_count_kv": [
            int(kind == "full_attention") for kind in config["layer_types"]
        ],
        "attention.key_length": config["kv_lora_rank"] + config["qk_rope_head_dim"],
        "attention.value_length": config["kv_lora_rank"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_gating_func": 2,
        "expert_group_used_count": config["topk_group"],
        "expert_weights_norm": True,
        "expert_weights_scale": config["routed_scaling_factor"],
        "kda.head_dim": dim,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "ssm.conv_kernel": taps,
    }


def ling_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Rates of their own sign, gates and decays as what Kimi Linear's read."""
    names = {
        ".attention.": ".self_attn.",
        ".self_attn.dense.": ".self_attn.o_proj.",
        ".f_proj.": ".f_a_proj.",
        ".mlp.gate.expert_bias": ".mlp.gate.e_score_correction_bias",
    }
    plain: Arrays = {}
    for name, array in arrays.items():
        for old, new in names.items():
            name = name.replace(old, new)
        if name.endswith(".self_attn.g_proj.weight"):
            layer = int(name.split(".")[2])
            is_state = config["layer_types"][layer] == "linear_attention"
            name = f"blk.{layer}.{'ssm_g_a' if is_state else 'attn_gate'}.weight"
        plain[name] = array
    return {
        name: -array.reshape(-1, 1) if name.endswith(".A_log") else array
        for name, array in kimi_arrays(plain, config).items()
    }


def ling_metadata(config: Config) -> dict[str, Any]:
    taps = config["short_conv_kernel_size"]
    return delta_metadata(config, config["linear_head_dim"], taps) | {
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_token"],
        "expert_group_count": config["num_expert_group"],
        "expert_shared_count": config["num_shared_experts"],
        "kda.gate_lower_bound": config["kda_lower_bound"],
        "kda.safe_gate": True,
        "nextn_predict_layers": 0,
    }


KIMI: dict[str, Conversion] = {
    "kimi_linear": Conversion("kimi-linear", reshape=kimi_arrays, metadata=kimi_metadata),
    "bailing_hybrid": Conversion(
        "bailingmoe3", named_as="kimi-linear", reshape=ling_arrays, metadata=ling_metadata
    ),
}
