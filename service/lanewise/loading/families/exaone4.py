"""EXAONE 4: norms of attention's and FFN's results; beside windows, layers without positions."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.program import Attention, Gated, Layer, ModelConfig
from lanewise.loading.families import olmo2
from lanewise.loading.families.common import (
    attention_of,
    by_turns,
    gated_of,
    model_of,
    n_layers_of,
    window_of,
    windows_of,
)
from lanewise.loading.families.family import Family
from lanewise.loading.programs.model_file import ModelFile

PERIOD = 4  # if the config does not say: every 4th layer has no window


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    attention = attention_of(file, qk_norm="head")
    windows = windows_of(file, window_of(file), pattern_of(file))
    layers = layers_of(attention, gated_of(file), windows)
    return model_of(file, "exaone4", layers, own_kinds=True)


def pattern_of(file: ModelFile) -> list[bool]:
    """Return which layers have a window: by letters like LLLG, or by a period."""
    n_layers, key = n_layers_of(file), "sliding_window_pattern"
    pattern = file.raw(key)
    if isinstance(pattern, str) and pattern and not set(pattern) - {"L", "G"}:
        return [pattern[n % len(pattern)] == "L" for n in range(n_layers)]
    period = file.integer(key, default=PERIOD, least=0)
    return by_turns(n_layers, period) if period else [False] * n_layers


def layers_of(attention: Attention, ffn: Gated, windows: list[int | None]) -> list[Layer]:
    """Return a layer for each window; if some have one, the others have no positions."""
    whole = replace(attention, rope=None) if any(windows) else attention
    made = {
        window: olmo2.behind(whole if window is None else replace(attention, window=window), ffn)
        for window in windows
    }
    return [made[window] for window in windows]


FAMILY = Family("exaone4", program, "exaone4", hf_tensors=olmo2.hf_tensors, gguf_is_usual=False)
