"""SmolLM3: Llama with layers that have no positions."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.program import Layer, ModelConfig
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

THETA, INTERVAL = 2000000.0, 4  # every fourth layer has no positions


def program(file: ModelFile) -> ModelConfig:
    """Read a file; GGUF files have neither the layers with positions nor the window."""
    attention, ffn = attention_of(file), gated_of(file)
    turned = layers_with_rope(file)
    windows: list[int | None] = [None] * len(turned)
    if not file.is_gguf:
        window = window_of(file, switched=True)
        windows = windows_of(file, window, [not has_rope for has_rope in turned])
    layers = [
        Layer(replace(attention, rope=0 if has_rope else None, window=window), ffn)
        for has_rope, window in zip(turned, windows, strict=True)
    ]
    return model_of(file, "smollm3", layers, THETA, tied=True)


def layers_with_rope(file: ModelFile) -> list[bool]:
    """Return which layers have positions."""
    n_layers = n_layers_of(file)
    interval = file.integer("no_rope_layer_interval", default=INTERVAL)
    listed = file.raw("no_rope_layers")
    if listed is None:
        return by_turns(n_layers, interval)
    is_list = isinstance(listed, list) and len(listed) >= n_layers
    if not is_list or not all(has_rope in (0, 1) for has_rope in listed):
        raise file.fail("no_rope_layers", f"{n_layers} times 1, for positions, or 0")
    return [has_rope == 1 for has_rope in listed[:n_layers]]


FAMILY = Family("smollm3", program, "smollm3", gguf_interleaved_rope=True)
