"""How a family's files become a GGUF file: what family_gguf and gguf_states state of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from family_models import Arrays
from published_configs import Config


@dataclass(frozen=True)
class Conversion:
    """How one family's files become a GGUF file."""

    arch: str
    # The architecture that gguf-py knows and whose tensors have the same names; "": arch itself.
    names_of: str = ""
    permuted: bool = False  # rows of Q and K
    reshape: Callable[[Arrays, Config], Arrays] = lambda arrays, config: arrays
    metadata: Callable[[Config], Mapping[str, Any]] = field(default=lambda config: {})


N_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def expert_metadata(config: Config) -> dict[str, Any]:
    """Keys of files with experts."""
    keys = {
        "expert_count": next(config[key] for key in N_EXPERTS if key in config),
        "expert_used_count": config.get("num_experts_per_tok", config.get("moe_k")),
    }
    if "moe_intermediate_size" in config:
        keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
    return keys


def granite_metadata(config: Config) -> dict[str, Any]:
    return {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
    }


def split_granite(arrays: Arrays, config: Config) -> Arrays:
    """Gate and up of all experts, the first halves and the second ones."""
    found: Arrays = {}
    size = config["intermediate_size"]
    for name, array in arrays.items():
        if "block_sparse_moe.input_linear" in name:
            before = name.replace("input_linear.weight", "experts.")
            found[f"{before}w1.weight"] = array[:, :size]
            found[f"{before}w3.weight"] = array[:, size:]
        else:
            found[name] = array
    return found
