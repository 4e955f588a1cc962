"""Which metadata and tensors GGUF files of further families have."""

from __future__ import annotations

from typing import Any

import numpy as np

from family_models import Arrays
from gguf_conversion import Conversion
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


FURTHER: dict[str, Conversion] = {
    "muse_glimmer": Conversion(
        "muse-glimmer", named_as="llama", reshape=muse_arrays, metadata=muse_metadata
    ),
}
