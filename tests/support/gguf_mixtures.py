"""How the cases of data/configs/mixtures.json become GGUF files."""

from __future__ import annotations

from typing import Any

from gguf_conversion import Conversion, bias_of_choice, expert_metadata
from published_configs import Config


def minimax_metadata(config: Config) -> dict[str, Any]:
    return expert_metadata(config) | {
        "expert_gating_func": 2,
        "expert_feed_forward_length": config["intermediate_size"],
        "rope.dimension_count": config["rotary_dim"],
    }


MIXTURES: dict[str, Conversion] = {
    "minimax_m2": Conversion("minimax-m2", reshape=bias_of_choice, metadata=minimax_metadata),
}
