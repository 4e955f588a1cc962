"""Which metadata and tensors GGUF files of further families have."""

from __future__ import annotations

from typing import Any

import numpy as np

from family_models import Arrays
from gguf_conversion import Conversion, bias_of_choice, expert_metadata
from gguf_wired import llama3_factors
from published_configs import Config

MUSE = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.gate_proj": "attn_gate",
}


def muse_metadata(config: Config) -> dict[str, Any]:
    return {
        "attention.sliding_window": config["sliding_window"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "logit_scale": config["output_multiplier"],
        "rope.freq_base": config["rope_theta"],
        "attention.sliding_window_pattern": [
            kind == "sliding_attention" for kind in config["layer_types"]
        ],
    }


def muse_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Norms of layers one larger; those of queries and keys, which have the factor of queries."""
    found: Arrays = {}
    for full, array in arrays.items():
        name = full.replace("model.language_model.", "model.")
        if "vision" in name:
            continue
        layer, _, rest = name.removeprefix("model.layers.").rpartition(".weight")[0].partition(".")
        if rest in MUSE:
            array = array + np.float32(1) if "norm" in rest else array
            name = f"blk.{layer}.{MUSE[rest]}.weight"
        found[name] = array
    for number in range(config["num_hidden_layers"]):
        ones = np.ones(config["head_dim"], np.float32)
        found[f"blk.{number}.attn_q_norm.weight"] = ones * np.float32(config["qk_scale_factor"])
        found[f"blk.{number}.attn_k_norm.weight"] = ones
    return found


def mimo_metadata(config: Config) -> dict[str, Any]:
    """The window is that of the makers, of tokens before the query."""
    windowed = [kind == "sliding_attention" for kind in config["layer_types"]]
    n_kv, full = config["num_key_value_heads"], config["rope_parameters"]["full_attention"]
    return expert_metadata(config) | {
        "attention.head_count_kv": [2 * n_kv if window else n_kv for window in windowed],
        "attention.value_length": config["v_head_dim"],
        "attention.value_scale": config["attention_value_scale"],
        "attention.sliding_window": config["sliding_window"] - 1,
        "attention.sliding_window_pattern": windowed,
        "rope.freq_base": full["rope_theta"],
        "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
        "rope.dimension_count": int(config["head_dim"] * full["partial_rotary_factor"]),
        "expert_gating_func": 2,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
    }


def mimo_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Sinks by the name of the file, and the bias of experts' choice."""
    named = {
        f"{name}.weight" if name.endswith("sinks") else name: array
        for name, array in bias_of_choice(arrays, config).items()
    }
    return {
        name.replace("self_attn.attention_sink_bias", "self_attn.sinks.weight"): array
        for name, array in named.items()
    }


def llama4_metadata(config: Config) -> dict[str, Any]:
    """Chunks and scales of queries are what the architecture has."""
    return {
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_gating_func": 2,
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    }


def llama4_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Experts with their outputs first, gate and up apart; and the divisors of angles."""
    found: Arrays = {}
    for name, array in llama3_factors(arrays, config).items():
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        part, before = rest.removeprefix("feed_forward."), f"blk.{layer}.ffn_"
        if part == "experts.gate_up_proj":
            gate, up = np.split(array.swapaxes(1, 2), 2, axis=1)
            found |= {f"{before}gate_exps.weight": gate, f"{before}up_exps.weight": up}
        elif part == "experts.down_proj":
            found[f"{before}down_exps.weight"] = array.swapaxes(1, 2)
        elif part.startswith("shared_expert."):
            kind = part.removeprefix("shared_expert.").partition("_")[0]
            found[f"{before}{kind}_shexp.weight"] = array
        elif part == "router.weight":
            found[f"{before}gate_inp.weight"] = array
        else:
            found[name.replace("feed_forward", "mlp")] = array
    return found


def gemma3n_metadata(config: Config) -> dict[str, Any]:
    """What is cut off and which layers share keys the architecture has."""
    ropes = config["rope_parameters"]
    return {
        "altup.num_inputs": config["altup_num_inputs"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [
            kind == "sliding_attention" for kind in config["layer_types"]
        ],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "rope.freq_base": ropes["full_attention"]["rope_theta"],
        "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
    }


def gemma3n_arrays(arrays: Arrays, config: Config) -> Arrays:
    """The projections of streams in one tensor each, and a scale by the name of a weight."""
    found: Arrays = {}
    ends = {"altup_projections": "altup_proj", "altup_unembed_projections": "altup_unembd_proj"}
    for name, array in arrays.items():
        if name.removeprefix("model.").partition(".")[0] not in ends:
            found[f"{name}.weight" if name.endswith("output_scale") else name] = array
    for name, end in ends.items():
        n = config["altup_num_inputs"] - 1
        parts = [arrays[f"model.{name}.{i}.weight"] for i in range(n)]
        found[f"{end}.weight"] = np.stack(parts)
    return found


V4_ENDS = {
    "attn_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "attn.attn_sink": "attn_sinks",
    "attn.wq_a": "attn_q_a",
    "attn.q_norm": "attn_q_a_norm",
    "attn.wq_b": "attn_q_b",
    "attn.wkv": "attn_kv",
    "attn.norm": "attn_kv_a_norm",
    "attn.wo_a": "attn_output_a",
    "attn.wo_b": "attn_output_b",
    "attn.compressor.wkv": "attn_compressor_kv",
    "attn.compressor.wgate": "attn_compressor_gate",
    "attn.compressor.ape": "attn_compressor_ape",
    "attn.compressor.norm": "attn_compressor_norm",
    "attn.indexer.wq_b": "indexer.attn_q_b",
    "attn.indexer.weights_proj": "indexer.proj",
    "attn.indexer.compressor.wkv": "indexer_compressor_kv",
    "attn.indexer.compressor.wgate": "indexer_compressor_gate",
    "attn.indexer.compressor.ape": "indexer_compressor_ape",
    "attn.indexer.compressor.norm": "indexer_compressor_norm",
    "ffn.gate": "ffn_gate_inp",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid",
    "ffn.experts.w1": "ffn_gate_exps",
    "ffn.experts.w2": "ffn_down_exps",
    "ffn.experts.w3": "ffn_up_exps",
    "ffn.shared_experts.w1": "ffn_gate_shexp",
    "ffn.shared_experts.w2": "ffn_down_shexp",
    "ffn.shared_experts.w3": "ffn_up_shexp",
}
V4_MODEL = {"head.weight": "output.weight"} | {
    f"model.hc_head.hc_{part}": f"output_hc_{part}.weight" for part in ("fn", "base", "scale")
}


def v4_metadata(config: Config) -> dict[str, Any]:
    n_layers, yarn = config["num_hidden_layers"], config["rope_parameters"]["compress"]
    ratios = {"sliding_attention": 0, "compressed_sparse_attention": 4}
    scaling: dict[str, Any] = {}
    if yarn["rope_type"] == "yarn":
        scaling = {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(yarn["factor"]),
            "rope.scaling.original_context_length": yarn["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": float(yarn["beta_fast"]),
            "rope.scaling.yarn_beta_slow": float(yarn["beta_slow"]),
        }
    return (
        expert_metadata(config)
        | scaling
        | {
            "attention.compress_ratios": [ratios.get(kind, 128) for kind in config["layer_types"]],
            "attention.compress_rope_freq_base": config["compress_rope_theta"],
            "attention.head_count_kv": 1,
            "attention.indexer.head_count": config["index_n_heads"],
            "attention.indexer.key_length": config["index_head_dim"],
            "attention.indexer.top_k": config["index_topk"],
            "attention.output_group_count": config["o_groups"],
            "attention.output_lora_rank": config["o_lora_rank"],
            "attention.q_lora_rank": config["q_lora_rank"],
            "attention.sliding_window": config["sliding_window"],
            "embedding_length_out": config["hc_mult"] * config["hidden_size"],
            "expert_gating_func": 4,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": config["routed_scaling_factor"],
            "hash_layer_count": config["mlp_layer_types"].count("hash_moe"),
            "hyper_connection.count": config["hc_mult"],
            "hyper_connection.epsilon": config["hc_eps"],
            "hyper_connection.sinkhorn_iterations": config["hc_sinkhorn_iters"],
            "rope.dimension_count": config["qk_rope_head_dim"],
            "rope.freq_base": config["rope_theta"],
            "swiglu_clamp_exp": [config["swiglu_limit"]] * n_layers,
            "swiglu_clamp_shexp": [config["swiglu_limit"]] * n_layers,
        }
    )


def v4_arrays(arrays: Arrays, config: Config) -> Arrays:
    """All by the names of the file; experts in one, numbers of experts in 32 bits."""
    found: Arrays = {}
    for name, array in arrays.items():
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        if name.endswith("gate.bias"):
            if config["mlp_layer_types"][int(layer)] == "moe":  # the others do not use it
                found[f"blk.{layer}.exp_probs_b.bias"] = array
            continue
        before, is_routed, number = rest.partition(".experts.")
        if is_routed:
            expert, _, part = number.partition(".")
            if expert != "0":
                continue
            every = (f"model.layers.{layer}.{before}.experts.{i}.{part}" for i in range(1000))
            array = np.stack([arrays[one] for one in every if one in arrays])
            rest = f"{before}.experts.{part}"
        if name.endswith("tid2eid"):
            array = array.astype(np.int32)
        end = V4_ENDS.get(rest.removesuffix(".weight"), rest)
        of_layer = f"blk.{layer}.{end}.weight"
        found[of_layer if "layers." in name else V4_MODEL.get(name, name)] = array
    return found


FURTHER: dict[str, Conversion] = {
    "deepseek_v4_odd": Conversion(
        "deepseek4", named_as="llama", reshape=v4_arrays, metadata=v4_metadata
    ),
    "gemma3n": Conversion("gemma3n", reshape=gemma3n_arrays, metadata=gemma3n_metadata),
    "llama4": Conversion("llama4", reshape=llama4_arrays, metadata=llama4_metadata),
    "mimo_v2_flash": Conversion("mimo2", reshape=mimo_arrays, metadata=mimo_metadata),
    "muse_glimmer": Conversion(
        "muse-glimmer", named_as="llama", reshape=muse_arrays, metadata=muse_metadata
    ),
}
