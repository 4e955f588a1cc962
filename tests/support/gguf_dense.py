"""How the cases of data/configs/dense.json become GGUF files."""

from __future__ import annotations

from typing import Any

import numpy as np

from family_models import Arrays, ternary_floats
from gguf_conversion import Conversion
from published_configs import Config


def with_ones(arrays: Arrays, config: Config) -> Arrays:
    """Norms that are one larger, as files of their makers lack it."""
    del config
    return {
        name: array + np.float32(1) if name.endswith("norm.weight") else array
        for name, array in arrays.items()
    }


def layer_norm_metadata(config: Config) -> dict[str, Any]:
    names = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    return {"attention.layer_norm_epsilon": next(config[n] for n in names if n in config)}


def stablelm_metadata(config: Config) -> dict[str, Any]:
    return layer_norm_metadata(config) | {"use_parallel_residual": config["use_parallel_residual"]}


def nemotron_metadata(config: Config) -> dict[str, Any]:
    return layer_norm_metadata(config) | {"rope.scaling.type": "none"}


def gemma3_metadata(config: Config) -> dict[str, Any]:
    full, sliding = (config["rope_parameters"][f"{k}_attention"] for k in ("full", "sliding"))
    return {
        "attention.sliding_window": config["sliding_window"],
        "rope.freq_base": full["rope_theta"],
        "rope.freq_base_swa": sliding["rope_theta"],
        "rope.scaling.type": "linear",
        "rope.scaling.factor": float(full.get("factor", 1.0)),
    }


def minicpm_metadata(config: Config) -> dict[str, Any]:
    return {
        "embedding_scale": float(config["scale_emb"]),
        "residual_scale": config["scale_depth"] / config["num_hidden_layers"] ** 0.5,
        "logit_scale": config["hidden_size"] / config["dim_model_base"],
    }


def bitnet_arrays(arrays: Arrays, config: Config) -> Arrays:
    """Matrices as floats, as the converter has them, and the names that gguf-py knows."""
    del config
    names = {"attn_sub_norm": "inner_attn_ln", "ffn_sub_norm": "ffn_layernorm"}
    found: Arrays = {}
    for name, array in ternary_floats(arrays).items():
        for old, new in names.items():
            name = name.replace(old, new)
        found[name] = np.asarray(array)
    return found


BITNET = {"named_as": "bitnet", "reshape": bitnet_arrays}
GLM = Conversion("glm4")
DENSE: dict[str, Conversion] = {
    "gemma": Conversion("gemma", reshape=with_ones),
    "gemma3": Conversion("gemma3", reshape=with_ones, metadata=gemma3_metadata),
    "glm": Conversion("chatglm"),
    "glm4": GLM,
    "glm4_yarn": GLM,
    "bitnet": Conversion("bitnet-b1.58", **BITNET),
    "bitnet_narrow": Conversion("bitnet-25", **BITNET),
    "bitnet_odd": Conversion("bitnet", **BITNET),
    "arcee": Conversion("arcee", permuted=True),
    "internlm3": Conversion("llama", permuted=True),
    "minicpm": Conversion("minicpm", permuted=True, metadata=minicpm_metadata),
    "nemotron": Conversion("nemotron", reshape=with_ones, metadata=nemotron_metadata),
    "starcoder2": Conversion("starcoder2", metadata=layer_norm_metadata),
    "stablelm": Conversion("stablelm", metadata=stablelm_metadata),
    "stablelm_plain": Conversion("stablelm", metadata=stablelm_metadata),
}
