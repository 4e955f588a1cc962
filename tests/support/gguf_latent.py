"""Families with latent attention as GGUF files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from family_models import Arrays
from gguf_conversion import Conversion, expert_metadata
from published_configs import Config


def split_heads(arrays: Arrays, config: Config) -> Arrays:
    """What keys and values of heads are made with, each head's keys turned around."""
    found: Arrays = {}
    still, values = config["qk_nope_head_dim"], config["v_head_dim"]
    for name, array in arrays.items():
        if name.endswith("experts.gate_up_proj"):
            gate_up = np.split(array, 2, axis=1)
            for part, half in zip(("gate_proj", "up_proj"), gate_up, strict=True):
                found[name.replace("gate_up_proj", f"{part}.weight")] = half
        elif name.endswith("experts.down_proj"):
            found[f"{name}.weight"] = array
        elif "kv_b_proj" not in name:
            found[name.replace("e_score_correction_bias", "e_score_correction.bias")] = array
        else:
            heads = array.reshape(-1, still + values, array.shape[1])
            found[name.replace("kv_b", "k_b")] = heads[:, :still].swapaxes(1, 2)
            found[name.replace("kv_b", "v_b")] = heads[:, still:]
    return found


def with_factors(arrays: Arrays, config: Config) -> Arrays:
    """The divisors of LongRoPE as tensors."""
    return arrays | {
        f"rope_factors_{length}.weight": np.array(
            config["rope_parameters"][f"{length}_factor"], np.float32
        )
        for length in ("long", "short")
    }


def head_metadata(config: Config) -> dict[str, Any]:
    """Sizes as they are before heads are made into rows of the cache."""
    keys = {
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length": config["v_head_dim"],
        "rope.dimension_count": config["qk_rope_head_dim"],
    }
    if config.get("q_lora_rank"):
        keys["attention.q_lora_rank"] = config["q_lora_rank"]
    return keys


def latent_metadata(config: Config) -> dict[str, Any]:
    """And those of the rows, which are one head."""
    keys, rank = head_metadata(config), config["kv_lora_rank"]
    for name in ("key", "value"):
        keys[f"attention.{name}_length_mla"] = keys[f"attention.{name}_length"]
    all_dims = config["rope_parameters"].get("mscale_all_dim")
    scale = {} if all_dims is None else {"rope.scaling.yarn_log_multiplier": 0.1 * all_dims}
    if "n_routed_experts" in config:
        experts = expert_metadata(config)
    else:
        experts = {"expert_feed_forward_length": config["intermediate_size"]}
    return (
        keys
        | scale
        | experts
        | {
            "attention.head_count_kv": 1,
            "attention.key_length": rank + config["qk_rope_head_dim"],
            "attention.value_length": rank,
            "expert_shared_count": config.get("n_shared_experts", 0),
            "leading_dense_block_count": config.get(
                "first_k_dense_replace", config["num_hidden_layers"]
            ),
        }
    )


def softmax_metadata(config: Config) -> dict[str, Any]:
    grouped = config["topk_method"] == "group_limited_greedy"
    groups = {
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
    }
    keys = latent_metadata(config) | {"expert_weights_scale": config["routed_scaling_factor"]}
    return keys | groups if grouped else keys


def sigmoid_metadata(config: Config) -> dict[str, Any]:
    return latent_metadata(config) | {
        "expert_gating_func": 2,
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "nextn_predict_layers": 0,
    }


def mistral_metadata(config: Config) -> dict[str, Any]:
    rope = config["rope_parameters"]
    return latent_metadata(config) | {
        "attention.temperature_length": rope["original_max_position_embeddings"],
        "attention.temperature_scale": rope["llama_4_scaling_beta"],
        "expert_gating_func": 1,
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
    }


def indexed_metadata(config: Config) -> dict[str, Any]:
    keys = sigmoid_metadata(config) | {
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
    }
    if config["model_type"] == "glm_moe_dsa" and "indexer_types" in config:
        keys["attention.indexer.types"] = [one == "full" for one in config["indexer_types"]]
    return keys


SOFTMAX = Conversion("deepseek2", reshape=split_heads, metadata=softmax_metadata)
SIGMOID = Conversion("deepseek2", reshape=split_heads, metadata=sigmoid_metadata)
INDEXED = Conversion("glm-dsa", reshape=split_heads, metadata=indexed_metadata)
LATENT: dict[str, Conversion] = {
    "deepseek_v2": SOFTMAX,
    "deepseek_v2_groups": SOFTMAX,
    "deepseek_v3": SIGMOID,
    "glm4_moe_lite": SIGMOID,
    "deepseek_v32": replace(INDEXED, arch="deepseek32", named_as="glm-dsa"),
    "glm_moe_dsa": INDEXED,
    "glm_moe_dsa_5": INDEXED,
    "youtu": Conversion("deepseek2", reshape=split_heads, metadata=latent_metadata),
    "minicpm3": Conversion("minicpm3", reshape=with_factors, metadata=head_metadata),
    "mistral4": Conversion("mistral4", reshape=split_heads, metadata=mistral_metadata),
}
