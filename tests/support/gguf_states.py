"""Families with a state as GGUF files, written as llama.cpp's converter writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from family_models import Arrays
from gguf_conversion import Conversion, expert_metadata, granite_metadata, split_granite
from published_configs import Config


def squeezed(arrays: Arrays) -> Arrays:
    """Convolutions with two dimensions."""
    return {
        name: a.squeeze(1) if "conv" in name and a.ndim == 3 else a for name, a in arrays.items()
    }


def lfm_metadata(config: Config) -> dict[str, Any]:
    counts = [
        0 if kind == "conv" else config["num_key_value_heads"] for kind in config["layer_types"]
    ]
    keys = {"shortconv.l_cache": config["conv_L_cache"], "attention.head_count_kv": counts}
    if "num_experts" in config:
        keys |= expert_metadata(config) | {
            "leading_dense_block_count": config["num_dense_layers"],
            "expert_gating_func": 2,
        }
    elif config["block_auto_adjust_ff_dim"]:
        multiple = config["block_multiple_of"]
        size = int(config["block_ffn_dim_multiplier"] * int(2 * config["intermediate_size"] / 3))
        keys["feed_forward_length"] = (size + multiple - 1) // multiple * multiple
    return keys


def lfm_arrays(arrays: Arrays, config: Config) -> Arrays:
    """The bias of experts as one that belongs to a module, experts by their matrix."""
    del config
    found: Arrays = {}
    for name, array in squeezed(arrays).items():
        name = name.replace(".expert_bias", ".expert_bias.bias")
        found[name.removeprefix("model.") if ".experts." in name else name] = array
    return found


def delta_metadata(config: Config) -> dict[str, Any]:
    heads, size = config["linear_num_value_heads"], config["linear_value_head_dim"]
    keys = {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * size,
        "attention.recurrent_layers": [
            kind == "linear_attention" for kind in config["layer_types"]
        ],
        "full_attention_interval": config.get("full_attention_interval", 4),
    }
    if "num_experts" in config:
        shared = config["shared_expert_intermediate_size"]
        keys |= expert_metadata(config) | {"expert_shared_feed_forward_length": shared}
    if "mrope_section" in config["rope_parameters"]:
        sections = config["rope_parameters"]["mrope_section"]
        keys["rope.dimension_sections"] = [*sections, 0]
    return keys


def delta_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Norms larger by 1, rates for their logarithms, fused inputs head by head taken apart."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    sizes = config["linear_key_head_dim"], config["linear_value_head_dim"]
    found: Arrays = {}
    for name, array in squeezed(arrays).items():
        if name.endswith(".A_log"):
            found[name] = -np.exp(array.astype("f8")).astype("f4")
        elif name.endswith(".dt_bias"):
            found[name.replace(".dt_bias", ".dt_proj.bias")] = array
        elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            found[name] = array + np.float32(1)
        elif name.endswith("in_proj_qkvz.weight"):
            each = array.reshape(keys, -1, array.shape[-1])
            ends = np.cumsum([sizes[0], sizes[0], values // keys * sizes[1]])
            q, k, v, z = (x.reshape(-1, x.shape[-1]) for x in np.split(each, ends, axis=1))
            layer = name.split(".")[2]
            found[f"blk.{layer}.attn_qkv.weight"] = np.concatenate([q, k, v])
            found[f"blk.{layer}.attn_gate.weight"] = z
        elif "experts.gate_up_proj" in name:
            half = array.shape[1] // 2
            found[name.replace("gate_up_proj", "gate_proj.weight")] = array[:, :half]
            found[name.replace("gate_up_proj", "up_proj.weight")] = array[:, half:]
        else:
            found[name] = array
    return found


def tiled_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Heads of values in another order: the first one of each head of keys, the second ones, ..."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    size = config["linear_value_head_dim"]
    heads = np.arange(values).reshape(keys, -1).T.reshape(-1)
    rows = (heads[:, None] * size + np.arange(size)).reshape(-1)
    qk = 2 * keys * config["linear_key_head_dim"]
    found: Arrays = {}
    for name, array in delta_arrays(arrays, config).items():
        if "in_proj_qkv" in name or "conv1d" in name:
            found[name] = np.concatenate([array[:qk], array[qk:][rows]])
        elif "in_proj_z" in name:
            found[name] = array[rows]
        elif any(part in name for part in ("in_proj_a", "in_proj_b", "A_log", "dt_proj")):
            found[name] = array[heads]
        elif "linear_attn.out_proj" in name:
            found[name] = array[:, rows]
        else:
            found[name] = array
    return found


def mamba_metadata(config: Config) -> dict[str, Any]:
    """As those of Granite and Nemotron H have them; the first number of each pair is Granite's."""
    heads = config.get("mamba_n_heads", config.get("mamba_num_heads"))
    size = config.get("mamba_d_head", config.get("mamba_head_dim"))
    kinds = config.get("layer_types", config.get("layers_block_type"))
    has_attention = [kind in ("attention", "full_attention") for kind in kinds]
    kv_heads = config["num_key_value_heads"]
    return {
        "ssm.conv_kernel": config.get("mamba_d_conv", config.get("conv_kernel")),
        "ssm.state_size": config.get("mamba_d_state", config.get("ssm_state_size")),
        "ssm.group_count": config.get("mamba_n_groups", config.get("n_groups")),
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * size,
        "attention.head_count_kv": [kv_heads * attends for attends in has_attention],
        "rope.scaling.finetuned": False,
    }


def hybrid_metadata(config: Config) -> dict[str, Any]:
    return (
        granite_metadata(config)
        | expert_metadata(config)
        | mamba_metadata(config)
        | {"expert_shared_feed_forward_length": config["shared_intermediate_size"]}
    )


def nemotron_metadata(config: Config) -> dict[str, Any]:
    sizes = [config["intermediate_size"] * (kind == "mlp") for kind in config["layers_block_type"]]
    return mamba_metadata(config) | {
        "feed_forward_length": sizes,
        "attention.layer_norm_epsilon": config["layer_norm_epsilon"],
    }


def nemotron_moe_metadata(config: Config) -> dict[str, Any]:
    """Nothing of how a router weighs: all of the family do it alike."""
    sizes = [
        config["moe_intermediate_size"] * (kind == "moe") for kind in config["layers_block_type"]
    ]
    latent = config.get("moe_latent_size")
    return (
        nemotron_metadata(config)
        | expert_metadata(config)
        | ({"moe_latent_size": latent} if latent else {})
        | {
            "feed_forward_length": sizes,
            "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
            "expert_shared_count": config["n_shared_experts"],
            "expert_weights_norm": config["norm_topk_prob"],
            "expert_weights_scale": config["routed_scaling_factor"],
            "expert_group_count": config["n_group"],
            "expert_group_used_count": config["topk_group"],
        }
    )


def nemotron_moe_arrays(arrays: Arrays, config: Config) -> Arrays:
    """The bias of the choice as one that belongs to a module, experts where others have them."""
    found: Arrays = {}
    for name, array in mamba_arrays(arrays, config).items():
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        if ".mixer.fc" in name:
            name = name.replace("model.", "backbone.")
        if ".mixer.experts." in name:
            name = name.replace("backbone.", "model.").replace(".mixer.", ".mlp.")
        found[name] = array
    return found


def mamba_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Rates for their logarithms, and vectors with a second dimension."""
    groups = config.get("mamba_n_groups", config.get("n_groups"))
    found: Arrays = {}
    for name, array in squeezed(arrays).items():
        if name.endswith(".A_log"):
            found[name] = -np.exp(array.astype("f8")).astype("f4")[:, None]
        elif name.endswith(".D"):
            found[name] = array[:, None]
        elif name.endswith(".dt_bias"):
            found[name.replace(".dt_bias", ".dt_proj.bias")] = array
        elif name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            found[name] = array.reshape(groups, -1)
        else:
            found[name] = array
    return found


def hybrid_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Gate and up of all layers' part apart too: a shared expert's, or all that there is."""
    end = "_shexp.weight" if config["num_local_experts"] else ".weight"
    found: Arrays = {}
    for name, array in mamba_arrays(split_granite(arrays, config), config).items():
        layer = name.split(".")[2] if ".shared_mlp." in name else ""
        if name.endswith("shared_mlp.input_linear.weight"):
            half = len(array) // 2
            found[f"blk.{layer}.ffn_gate{end}"] = array[:half]
            found[f"blk.{layer}.ffn_up{end}"] = array[half:]
        elif layer:
            found[f"blk.{layer}.ffn_down{end}"] = array
        else:
            found[name] = array
    return found


def falcon_metadata(config: Config) -> dict[str, Any]:
    keys = mamba_metadata(config | {"layer_types": ()})
    del keys["attention.head_count_kv"], keys["rope.scaling.finetuned"]
    return keys


def falcon_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Everything multiplied by what the config says, the embedding and the head as well."""
    size = config["mamba_d_ssm"]
    keys = config["mamba_n_groups"] * config["mamba_d_state"]
    inner = np.array(config["ssm_multipliers"], "f4")
    rows = inner.repeat([size, size, keys, keys, config["mamba_n_heads"]])[:, None]
    gate, down = config["mlp_multipliers"]
    before = config["attention_in_multiplier"]
    factors = {
        "q_proj": before,
        "k_proj": before * config["key_multiplier"],
        "v_proj": before,
        "o_proj": config["attention_out_multiplier"],
        "mamba.in_proj": rows * np.float32(config["ssm_in_multiplier"]),
        "mamba.out_proj": config["ssm_out_multiplier"],
        "gate_proj": gate,
        "down_proj": down,
        "embed_tokens": config["embedding_multiplier"],
        "lm_head": config["lm_head_multiplier"],
    }
    return {
        name: array * np.float32(by) if np.isscalar(by) else array * by
        for name, array in mamba_arrays(arrays, config).items()
        for by in [next((by for part, by in factors.items() if part in name), 1.0)]
    }


STATES: dict[str, Conversion] = {
    "lfm2": Conversion("lfm2", reshape=lfm_arrays, metadata=lfm_metadata),
    "lfm2_moe": Conversion("lfm2moe", reshape=lfm_arrays, metadata=lfm_metadata),
    "qwen3_next": Conversion("qwen3next", reshape=delta_arrays, metadata=delta_metadata),
    "qwen3_5": Conversion("qwen35", reshape=tiled_arrays, metadata=delta_metadata),
    "granitemoehybrid": Conversion(
        "granitehybrid", permuted=True, reshape=hybrid_arrays, metadata=hybrid_metadata
    ),
    "nemotron_h": Conversion(
        "nemotron_h", permuted=True, reshape=mamba_arrays, metadata=nemotron_metadata
    ),
    "nemotron_h_moe": Conversion(
        "nemotron_h_moe",
        permuted=True,
        reshape=nemotron_moe_arrays,
        metadata=nemotron_moe_metadata,
    ),
    "nemotron_h_latent": Conversion(
        "nemotron_h_moe",
        permuted=True,
        reshape=nemotron_moe_arrays,
        metadata=nemotron_moe_metadata,
    ),
    "qwen3_5_moe": Conversion("qwen35moe", reshape=tiled_arrays, metadata=delta_metadata),
    "falcon_h1": Conversion("falcon-h1", reshape=falcon_arrays, metadata=falcon_metadata),
}
# Whose sums have another order then, and so other bits.
REORDERED = ("qwen3_5", "qwen3_5_moe")
# Whose tensors the converter multiplies by what is said in config.json.
MULTIPLIED = ("falcon_h1",)
