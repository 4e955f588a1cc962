"""EXAONE 4: norms of what is added, and where there are windows no positions in other layers."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.families import olmo2
from lanewise.loading.families.common import (
    KINDS,
    hf_attention,
    hf_gated,
    hf_kinds,
    hf_model,
    hf_n_layers,
    hf_window,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
    gguf_windows,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Attention, Gated, Layer, ModelConfig
from lanewise.loading.sources import Sources

PERIOD = 4  # of configs that do not say: the last layer of each sees all


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    n_layers, window = hf_n_layers(fields, sources), hf_window(fields)
    have = hf_pattern(fields, n_layers)
    kinds = hf_kinds(fields, n_layers)
    if kinds is not None:
        have = [kind == KINDS[1] for kind in kinds]
    windows = [window if has_window else None for has_window in have]
    attention = hf_attention(fields, sources, qk_norm="head")
    layers = layers_of(attention, hf_gated(fields, sources), windows)
    return hf_model(fields, "exaone4", layers, own_kinds=True)


def hf_pattern(fields: Fields, n_layers: int) -> list[bool]:
    """Return which layers have a window: L of letters like LLLG, or all but each so many-th."""
    key = "sliding_window_pattern"
    pattern = fields.raw(key)
    if isinstance(pattern, str) and pattern and not set(pattern) - {"L", "G"}:
        return [pattern[n % len(pattern)] == "L" for n in range(n_layers)]
    period = fields.integer(key, default=PERIOD, least=0)
    return [period > 0 and (n + 1) % period != 0 for n in range(n_layers)]


def layers_of(attention: Attention, ffn: Gated, windows: list[int | None]) -> list[Layer]:
    """Return a layer for each window; where some have one, the others have no positions."""
    whole = replace(attention, rope=None) if any(windows) else attention
    made = {
        window: olmo2.behind(whole if window is None else replace(attention, window=window), ffn)
        for window in windows
    }
    return [made[window] for window in windows]


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    attention = gguf_attention(fields, sources, qk_norm="head")
    windows = gguf_windows(fields, gguf_n_layers(fields, sources), PERIOD)
    layers = layers_of(attention, gguf_gated(fields, sources), windows)
    return gguf_model(fields, sources, "exaone4", layers)


FAMILY = Family(
    "exaone4",
    from_hf,
    "exaone4",
    from_gguf,
    hf_tensors=olmo2.hf_tensors,
    gguf_is_usual=False,
)
