"""Qwen 2 and 2.5: Llama with biases of Q, K and V, and windows in some or all layers."""

from __future__ import annotations

from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import (
    attention_of,
    gated_of,
    model_of,
    n_layers_of,
    window_of,
    windows_of,
    with_windows,
)
from lanewise.loading.families.family import Family
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    layer = Layer(attention_of(file, qkv_bias=True), gated_of(file))
    return model_of(file, "qwen2", with_windows(layer, qwen_windows(file)))


def qwen_windows(file: ModelFile) -> list[int | None]:
    """Return each layer's window: from max_window_layers on; in GGUF files for all layers."""
    first = file.integer("max_window_layers", default=0, least=0)
    have = [number >= first for number in range(n_layers_of(file))]
    return windows_of(file, window_of(file, switched=True), have)


FAMILY = Family("qwen2", program, "qwen2")
