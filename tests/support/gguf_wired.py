"""How the cases of data/configs/wired.json become GGUF files."""

from __future__ import annotations

from typing import Any

import numpy as np

from family_models import Arrays, values_of
from gguf_conversion import Conversion
from gguf_dense import layer_norm_metadata, stablelm_metadata, with_ones
from published_configs import Config

XIELU = ("alpha_p", "alpha_n", "beta", "eps")


def windows_metadata(config: Config) -> dict[str, Any]:
    """The window, and which layers have it."""
    kinds = [kind == "sliding_attention" for kind in config["layer_types"]]
    return {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": kinds,
    }


def olmo_metadata(config: Config) -> dict[str, Any]:
    clip = config["clip_qkv"]
    return {"attention.layer_norm_epsilon": 1e-5} | (
        {} if clip is None else {"attention.clamp_kqv": clip}
    )


def olmo3_metadata(config: Config) -> dict[str, Any]:
    """YaRN of the layers that see all."""
    rope = config["rope_parameters"]["full_attention"]
    return windows_metadata(config) | {
        "rope.freq_base": rope["rope_theta"],
        "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.yarn_attn_factor": rope["attention_factor"],
    }


def hunyuan_metadata(config: Config) -> dict[str, Any]:
    """The larger base that an alpha means."""
    rope, dim = config["rope_parameters"], config["head_dim"]
    return {
        "rope.freq_base": rope["rope_theta"] * rope["alpha"] ** (dim / (dim - 2)),
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
    }


def llama3_factors(arrays: Arrays, config: Config) -> Arrays:
    """The divisors of Llama 3's scaling as a tensor."""
    from lanewise.loading.programs.rope import llama3_factors as factors

    rope = config["rope_parameters"]
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    found = factors(
        rope["rope_theta"],
        head,
        rope["factor"],
        rope["low_freq_factor"],
        rope["high_freq_factor"],
        rope["original_max_position_embeddings"],
    )
    return arrays | {"rope_freqs.weight": np.array(found, np.float32)}


def without_xielu(arrays: Arrays, config: Config) -> Arrays:
    kept = {name: array for name, array in arrays.items() if ".act_fn." not in name}
    return llama3_factors(kept, config)


def apertus_metadata(config: Config) -> dict[str, Any]:
    """The numbers of xIELU, which are tensors elsewhere."""
    folders = [f"model.layers.{n}.mlp.act_fn" for n in range(config["num_hidden_layers"])]
    return {
        f"xielu.{name}": [float(values_of(f"{folder}.{name}", (1,))[0]) for folder in folders]
        for name in XIELU
    }


def cohere_metadata(config: Config) -> dict[str, Any]:
    context = config["max_position_embeddings"]
    return layer_norm_metadata(config) | {
        "context_length": config.get("model_max_length", context),
        "logit_scale": config["logit_scale"],
        "rope.scaling.type": "none",
    }


def cohere2_metadata(config: Config) -> dict[str, Any]:
    return cohere_metadata(config) | {"attention.sliding_window": config["sliding_window"]}


def neox_metadata(config: Config) -> dict[str, Any]:
    return layer_norm_metadata(config) | {"use_parallel_residual": config["use_parallel_residual"]}


def by_kind(arrays: Arrays, config: Config) -> Arrays:
    """Rows of all queries, then of all keys, then of all values."""
    n_heads = config["num_attention_heads"]
    n_kv = config.get("num_kv_heads") or n_heads
    if config.get("multi_query") and not config["new_decoder_architecture"]:
        n_kv = 1
    found = dict(arrays)
    for name, array in arrays.items():
        if "query_key_value" in name:
            groups = array.reshape(n_kv, n_heads // n_kv + 2, -1, *array.shape[1:])
            each = (groups[:, :-2], groups[:, -2], groups[:, -1])
            found[name] = np.concatenate([one.reshape(-1, *array.shape[1:]) for one in each])
    return found


def falcon_metadata(config: Config) -> dict[str, Any]:
    n_kv = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
    return layer_norm_metadata(config) | {
        "attention.head_count_kv": n_kv,
        "feed_forward_length": 4 * config["hidden_size"],
        "tensor_data_layout": "jploski",
    }


def outputs_first(arrays: Arrays, config: Config) -> Arrays:
    del config
    matrices = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {name: a.T if name.endswith(matrices) else a for name, a in arrays.items()}


def one_head_metadata(config: Config) -> dict[str, Any]:
    size = {"feed_forward_length": config["n_inner"]}
    return gpt2_metadata(config) | size | {"attention.head_count_kv": 1}


def gpt2_metadata(config: Config) -> dict[str, Any]:
    return layer_norm_metadata(config)


def gemma2_metadata(config: Config) -> dict[str, Any]:
    return {
        "attention.sliding_window": config["sliding_window"],
        "attn_logit_softcapping": config["attn_logit_softcapping"],
        "final_logit_softcapping": config["final_logit_softcapping"],
    }


def gemma4_sizes(config: Config) -> int | list[int]:
    """One for each layer where those that share keys and values are twice as wide."""
    size, n = config["intermediate_size"], config["num_kv_shared_layers"]
    if not config["use_double_wide_mlp"]:
        return int(size)
    return [size] * (config["num_hidden_layers"] - n) + [2 * size] * n


def gemma4_metadata(config: Config) -> dict[str, Any]:
    """Heads of both kinds of layers; their own number of KV heads where the config has one."""
    full, sliding = (config["rope_parameters"][f"{k}_attention"] for k in ("full", "sliding"))
    own = next(iter(config["per_layer_config"].values()), {})
    head, n_kv = own.get("head_dim", config["head_dim"]), own.get("num_key_value_heads")
    counts = {
        "sliding_attention": config["num_key_value_heads"],
        "full_attention": n_kv or config["num_key_value_heads"],
    }
    return windows_metadata(config) | {
        "attention.head_count_kv": [counts[kind] for kind in config["layer_types"]],
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "feed_forward_length": gemma4_sizes(config),
        "final_logit_softcapping": config["final_logit_softcapping"],
        "rope.dimension_count": head,
        "rope.dimension_count_swa": config["head_dim"],
        "rope.freq_base": full["rope_theta"],
        "rope.freq_base_swa": sliding["rope_theta"],
    }


def gemma4_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Scales as weights, and divisors that leave most angles of whole layers where they are."""
    each = next(iter(config["per_layer_config"].values()), {})
    own = each.get("head_dim", config["head_dim"]) // 2
    turned = int(own * config["rope_parameters"]["full_attention"]["partial_rotary_factor"])
    factors = np.array([1.0] * turned + [1e30] * (own - turned), np.float32)
    names = {name: f"{name}.weight" if name.endswith("layer_scalar") else name for name in arrays}
    return {names[name]: array for name, array in arrays.items()} | {"rope_freqs.weight": factors}


def norms_of_heads(arrays: Arrays, config: Config) -> Arrays:
    """Rows of one tensor, which are tensors elsewhere."""
    found = {name: array for name, array in arrays.items() if ".norms." not in name}
    counts = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    for number in range(config["num_hidden_layers"]):
        for kind, n in counts.items():
            norm = f"model.layers.{number}.self_attn.{kind}_layernorm"
            rows = [arrays[f"{norm}.norms.{head}.weight"] for head in range(n)]
            found[f"{norm}.weight"] = np.stack(rows)
    return found


def gemma4_mixture_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Names of what only layers with experts have."""
    names = {
        "router.proj.weight": "ffn_gate_inp.weight",
        "router.scale": "ffn_gate_inp.scale",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
        "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
        "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
        "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight",
    }
    found = {}
    for name, array in gemma4_arrays(arrays, config).items():
        number, _, rest = name.removeprefix("model.layers.").partition(".")
        found[f"blk.{number}.{names[rest]}" if rest in names else name] = array
    return found


def gemma4_mixture_metadata(config: Config) -> dict[str, Any]:
    return gemma4_metadata(config) | {
        "expert_count": config["num_experts"],
        "expert_used_count": config["top_k_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
    }


NEOX = Conversion("gptneox", reshape=by_kind, metadata=neox_metadata)
FALCON = Conversion("falcon", reshape=by_kind, metadata=falcon_metadata)
GEMMA4 = Conversion("gemma4", reshape=gemma4_arrays, metadata=gemma4_metadata)
WIRED: dict[str, Conversion] = {
    "olmo": Conversion("olmo", permuted=True, metadata=olmo_metadata),
    "olmo_clip": Conversion("olmo", permuted=True, metadata=olmo_metadata),
    "olmo2": Conversion("olmo2"),
    "olmo3": Conversion("olmo2", metadata=olmo3_metadata),
    "olmo3_thetas": Conversion("olmo2", metadata=olmo3_metadata),
    "exaone4": Conversion("exaone4", reshape=llama3_factors, metadata=windows_metadata),
    "exaone4_whole": Conversion("exaone4"),
    "hunyuan": Conversion("hunyuan-dense", metadata=hunyuan_metadata),
    "apertus": Conversion("apertus", reshape=without_xielu, metadata=apertus_metadata),
    "cohere": Conversion("command-r", metadata=cohere_metadata),
    "cohere2": Conversion("cohere2", metadata=cohere2_metadata),
    "phi": Conversion("phi2", metadata=layer_norm_metadata),
    "gpt_neox": NEOX,
    "gpt_neox_in_turn": NEOX,
    "falcon": FALCON,
    "falcon_new": FALCON,
    "gpt2": Conversion("gpt2", reshape=outputs_first, metadata=gpt2_metadata),
    "gpt_bigcode": Conversion("starcoder", metadata=one_head_metadata),
    "gemma2": Conversion("gemma2", reshape=with_ones, metadata=gemma2_metadata),
    "gemma4": GEMMA4,
    "gemma4_values": GEMMA4,
    "gemma4_mixture": Conversion(
        "gemma4", reshape=gemma4_mixture_arrays, metadata=gemma4_mixture_metadata
    ),
    "gemma4_small": GEMMA4,
    "cohere_norms": Conversion("command-r", metadata=cohere_metadata),
    "stablelm_norms": Conversion("stablelm", reshape=norms_of_heads, metadata=stablelm_metadata),
    "stablelm_parallel": Conversion("stablelm", metadata=stablelm_metadata),
}
