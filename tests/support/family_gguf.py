"""The models of family_models as GGUF files, written as llama.cpp's converter writes them.

Names of tensors are those that gguf-py maps; the rest is stated here per family: which metadata
there is, what is merged or fused, and which rows of Q and K turn as neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from family_models import Arrays, FamilyModel
from gguf_conversion import (
    Conversion,
    bias_of_choice,
    expert_metadata,
    granite_metadata,
    split_granite,
)
from gguf_dense import DENSE
from gguf_further import FURTHER
from gguf_kimi import KIMI
from gguf_latent import LATENT
from gguf_mixtures import MIXTURES
from gguf_states import STATES
from gguf_values import add_value, interleave, write_out
from gguf_wired import WIRED
from published_configs import Config

EPSILONS = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon")


def epsilon_metadata(config: Config) -> dict[str, Any]:
    """What RMSNorms have; families of LayerNorm state it themselves."""
    found = [config[key] for key in EPSILONS if key in config]
    return {"attention.layer_norm_rms_epsilon": found[0]} if found else {}


def rope_metadata(config: Config) -> dict[str, Any]:
    """Keys of positions, scaled ones too; nobody writes dynamic scaling."""
    rope = config.get("rope_parameters") or {"rope_theta": 10000.0}
    if "rope_theta" not in rope:
        return {}  # several sets, which the family states
    plain = {"rope.freq_base": float(rope["rope_theta"])}
    kind = rope.get("rope_type")
    if kind not in ("linear", "yarn"):
        return plain
    keys = plain | {"rope.scaling.type": kind, "rope.scaling.factor": rope["factor"]}
    if kind == "yarn":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        for end in ("beta_fast", "beta_slow"):
            if end in rope:
                keys[f"rope.scaling.yarn_{end}"] = float(rope[end])
    return keys


def gpt_oss_metadata(config: Config) -> dict[str, Any]:
    return expert_metadata(config) | {
        "attention.sliding_window": config["sliding_window"],
        "expert_feed_forward_length": config["intermediate_size"],
    }


def split_gpt_oss(arrays: Arrays, config: Config) -> Arrays:
    """Rows of gate and up in turns, outputs first."""
    found: Arrays = {}
    for name, array in arrays.items():
        if "experts." not in name:
            found[f"{name}.weight" if name.endswith("sinks") else name] = array
            continue
        bias = name.endswith("_bias")
        matrix = array if bias else array.swapaxes(1, 2)
        ending = ".bias" if bias else ".weight"
        stem = name.removesuffix("_bias")
        if "gate_up" in stem:
            found[stem.replace("gate_up_proj", "gate_proj") + ending] = matrix[:, 0::2]
            found[stem.replace("gate_up_proj", "up_proj") + ending] = matrix[:, 1::2]
        else:
            found[stem + ending] = matrix
    return found


def window_metadata(config: Config) -> dict[str, Any]:
    return {"attention.sliding_window": config["sliding_window"]}


def ministral_metadata(config: Config) -> dict[str, Any]:
    rope = config["rope_parameters"]
    return {
        "rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
        "attention.temperature_scale": rope["llama_4_scaling_beta"],
    }


def granitemoe_metadata(config: Config) -> dict[str, Any]:
    return granite_metadata(config) | expert_metadata(config)


def shared_metadata(config: Config) -> dict[str, Any]:
    shared = {"expert_shared_feed_forward_length": config["shared_expert_intermediate_size"]}
    return expert_metadata(config) | shared


def ernie_metadata(config: Config) -> dict[str, Any]:
    return expert_metadata(config) | {
        "interleave_moe_layer_step": config["moe_layer_interval"],
        "leading_dense_block_count": config["moe_layer_start_index"],
        "expert_shared_count": config["moe_num_shared_experts"],
        "expert_shared_feed_forward_length": config["moe_num_shared_experts"]
        * config["moe_intermediate_size"],
    }


def glm_metadata(config: Config) -> dict[str, Any]:
    return expert_metadata(config) | {
        "expert_gating_func": 2,
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_shared_count": config["n_shared_experts"],
        "leading_dense_block_count": config["first_k_dense_replace"],
        "nextn_predict_layers": 0,
    }


def phi_metadata(config: Config) -> dict[str, Any]:
    rope, keys = config["rope_parameters"], {}
    original = rope.get("original_max_position_embeddings", config["max_position_embeddings"])
    keys["rope.scaling.original_context_length"] = original
    keys["attention.sliding_window"] = config["sliding_window"]
    if rope["rope_type"] == "longrope":
        factor = config["max_position_embeddings"] / original
        scale = math.sqrt(1 + math.log(factor) / math.log(original))
        keys["rope.scaling.attn_factor"] = scale
    return keys


def phi_factors(arrays: Arrays, config: Config) -> Arrays:
    """The divisors of LongRoPE as tensors."""
    rope = config["rope_parameters"]
    factors = {
        f"rope_factors_{length}.weight": np.array(rope[f"{length}_factor"], np.float32)
        for length in ("long", "short")
        if f"{length}_factor" in rope
    }
    return arrays | factors


CONVERSIONS: dict[str, Conversion] = STATES | {
    "llama": Conversion("llama", permuted=True),
    "llama_yarn": Conversion("llama", permuted=True),
    "llama_linear": Conversion("llama", permuted=True),
    "llama_dynamic": Conversion("llama", permuted=True),
    "mistral": Conversion("llama", permuted=True, metadata=window_metadata),
    "ministral3": Conversion("mistral3", permuted=True, metadata=ministral_metadata),
    "qwen2": Conversion("qwen2"),
    "qwen3": Conversion("qwen3"),
    "qwen3_moe": Conversion("qwen3moe", metadata=expert_metadata),
    "qwen2_moe": Conversion("qwen2moe", metadata=shared_metadata),
    "mixtral": Conversion("llama", permuted=True, metadata=expert_metadata),
    "olmoe": Conversion("olmoe", metadata=expert_metadata),
    "gpt_oss": Conversion("gpt-oss", reshape=split_gpt_oss, metadata=gpt_oss_metadata),
    "granite": Conversion("granite", permuted=True, metadata=granite_metadata),
    "granitemoe": Conversion(
        "granitemoe", permuted=True, reshape=split_granite, metadata=granitemoe_metadata
    ),
    "ernie4_5": Conversion("ernie4_5"),
    "ernie4_5_moe": Conversion("ernie4_5-moe", reshape=bias_of_choice, metadata=ernie_metadata),
    "glm4_moe": Conversion("glm4moe", reshape=bias_of_choice, metadata=glm_metadata),
    "glm4_moe_groups": Conversion("glm4moe", reshape=bias_of_choice, metadata=glm_metadata),
    "phi3": Conversion("phi3", metadata=phi_metadata),
    "phi3_longrope": Conversion("phi3", reshape=phi_factors, metadata=phi_metadata),
    "phi3_partial": Conversion("phi3", reshape=phi_factors, metadata=phi_metadata),
    "smollm3": Conversion("smollm3", permuted=True),
    "seed_oss": Conversion("seed_oss"),
}
CONVERSIONS |= DENSE | WIRED | LATENT | MIXTURES | FURTHER | KIMI
for variant in ("granite_bias", "granitemoe_bias", "glm4_moe_yarn"):  # that llama.cpp reads too
    CONVERSIONS[variant] = CONVERSIONS[variant.rpartition("_")[0]]
GGUF_CASES = tuple(CONVERSIONS)


def stacked(arrays: Arrays) -> Arrays:
    """One tensor of three dimensions of the experts' tensors of each layer."""
    found: Arrays = {}
    for name, array in arrays.items():
        before, middle, rest = name.partition(".experts.")
        number, _, part = rest.partition(".")
        if not middle or not number.isdecimal():
            found[name] = array
        elif number == "0":
            each = (f"{before}.experts.{i}.{part}" for i in range(1000))
            found[f"{before}.experts.{part}"] = np.stack([arrays[n] for n in each if n in arrays])
    return found


def n_layers_of(config: Config) -> int:
    names = ("num_hidden_layers", "n_layer")
    return next((config[n] for n in names if n in config), 0) or len(config["layers_block_type"])


def usual_keys(config: Config) -> Config:
    """The config with sizes under the names that most have."""
    names = {
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings",
        "model_max_length": "max_position_embeddings",
    }
    found = {new: config[old] for old, new in names.items() if old in config} | config
    return {"num_key_value_heads": found["num_attention_heads"]} | found


def gguf_arrays(model: FamilyModel) -> Arrays:
    """The tensors by the names of the GGUF file."""
    conversion, config = CONVERSIONS[model.name], model.config
    arrays = stacked(conversion.reshape(model.tensors, config))
    known = conversion.named_as or conversion.arch
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == known)
    names = gguf.get_tensor_name_map(arch, n_layers_of(config))
    found: Arrays = {}
    for name, array in arrays.items():
        if conversion.permuted and ".q_proj" in name:
            array = interleave(array, config["num_attention_heads"])
        if conversion.permuted and ".k_proj" in name:
            array = interleave(array, config["num_key_value_heads"])
        mapped = names.get_name(name, try_suffixes=(".weight", ".bias")) or name
        found[mapped] = np.ascontiguousarray(array if ".ssm_" in mapped else array.squeeze())
    return found


def metadata_of(model: FamilyModel) -> dict[str, Any]:
    """What the file says, by keys without the architecture."""
    config = usual_keys(model.config)
    n_heads = config["num_attention_heads"]
    head = config.get("head_dim") or config["hidden_size"] // n_heads
    rope = config.get("rope_parameters") or {"rope_theta": 10000.0}
    return (
        {
            "vocab_size": config["vocab_size"],
            "context_length": config["max_position_embeddings"],
            "embedding_length": config["hidden_size"],
            "block_count": n_layers_of(config),
            "feed_forward_length": config.get("intermediate_size", 4 * config["hidden_size"]),
            "attention.head_count": n_heads,
            "attention.head_count_kv": config["num_key_value_heads"],
            "attention.key_length": head,
            "attention.value_length": head,
            "rope.dimension_count": int(head * rope.get("partial_rotary_factor", 1.0)),
        }
        | epsilon_metadata(config)
        | rope_metadata(config)
        | dict(CONVERSIONS[model.name].metadata(config))
    )


def write_gguf(
    model: FamilyModel,
    path: Path,
    changes: Mapping[str, Any] | None = None,
    tensors: Arrays | None = None,
) -> Path:
    """Write a GGUF file of F32 tensors and return it.

    ``changes`` are of its metadata, whose keys lack the architecture but for the tokenizer's; None
    leaves one out. ``tensors`` are written in the place of those that belong to it.
    """
    conversion = CONVERSIONS[model.name]
    writer = gguf.GGUFWriter(path, conversion.arch)
    for key, value in (metadata_of(model) | dict(changes or {})).items():
        prefix = "" if key.startswith(("xielu.", "tokenizer.")) else f"{conversion.arch}."
        if value is not None:
            add_value(writer, prefix + key, value)
    for name, array in (gguf_arrays(model) if tensors is None else tensors).items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    write_out(writer)
    return path
