"""Command R7B and A: Cohere's layers with sliding windows; layers without a window have no RoPE."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.program import Attention, Gated, Layer, ModelConfig
from lanewise.loading.families import cohere
from lanewise.loading.families.common import (
    attention_of,
    by_turns,
    check_values,
    gated_of,
    n_layers_of,
    window_of,
    windows_of,
)
from lanewise.loading.programs.model_file import ModelFile

PERIOD, THETA = 4, 10000.0  # by default
MUST_BE = {
    "order_of_interleaved_layers": ("local_attn_first",),
    "position_embedding_type": ("rope_gptj",),
    "rotary_pct": (1.0,),
    "use_gated_activation": (True,),
    "use_parallel_block": (True,),
    "use_parallel_embedding": (False,),
    "use_qk_norm": (False,),
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_values(file, MUST_BE)
    period = file.integer("sliding_window_pattern", default=PERIOD)
    have = by_turns(n_layers_of(file), period)
    windows = windows_of(file, window_of(file, always=True), have)
    layers = layers_of(attention_of(file), gated_of(file), windows)
    return cohere.cohere_of(file, "cohere2", layers, THETA)


def layers_of(attention: Attention, ffn: Gated, windows: list[int | None]) -> list[Layer]:
    """Return a layer for each window; without a window there are no positions."""
    made = {
        window: cohere.beside(
            replace(attention, rope=None if window is None else 0, window=window), ffn
        )
        for window in windows
    }
    return [made[window] for window in windows]


FAMILY = replace(cohere.FAMILY, name="cohere2", program=program, gguf="cohere2")
