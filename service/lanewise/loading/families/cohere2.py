"""Command R7B and A: Cohere's layers with windows, and no positions where there is none."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.families import cohere
from lanewise.loading.families.common import (
    KINDS,
    check_values,
    hf_attention,
    hf_gated,
    hf_kinds,
    hf_n_layers,
)
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_gated,
    gguf_n_layers,
    gguf_windows,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Attention, Gated, Layer, ModelConfig
from lanewise.loading.sources import Sources

WINDOW, PERIOD, THETA = 4096, 4, 10000.0  # of configs that do not say
MUST_BE = {
    "order_of_interleaved_layers": ("local_attn_first",),
    "position_embedding_type": ("rope_gptj",),
    "rotary_pct": (1.0,),
    "use_gated_activation": (True,),
    "use_parallel_block": (True,),
    "use_parallel_embedding": (False,),
    "use_qk_norm": (False,),
}


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_values(fields, MUST_BE)
    n_layers = hf_n_layers(fields, sources)
    period = fields.integer("sliding_window_pattern", default=PERIOD)
    kinds = hf_kinds(fields, n_layers) or [KINDS[n % period < period - 1] for n in range(n_layers)]
    window = fields.integer("sliding_window", default=WINDOW)
    windows = [None if kind == KINDS[0] else window for kind in kinds]
    layers = layers_of(hf_attention(fields, sources), hf_gated(fields, sources), windows)
    return cohere.hf_cohere(fields, "cohere2", layers, THETA)


def layers_of(attention: Attention, ffn: Gated, windows: list[int | None]) -> list[Layer]:
    """Return a layer for each window; what sees all has no positions."""
    made = {
        window: cohere.beside(
            replace(attention, rope=None if window is None else 0, window=window), ffn
        )
        for window in windows
    }
    return [made[window] for window in windows]


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    windows = gguf_windows(fields, gguf_n_layers(fields, sources), PERIOD)
    layers = layers_of(gguf_attention(fields, sources), gguf_gated(fields, sources), windows)
    return cohere.gguf_cohere(fields, sources, "cohere2", layers)


FAMILY = replace(
    cohere.FAMILY,
    name="cohere2",
    from_hf=from_hf,
    gguf="cohere2",
    from_gguf=from_gguf,
)
