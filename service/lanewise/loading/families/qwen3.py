"""Qwen 3, also of Qwen 3-VL: Qwen 2 with norms of Q and K instead of biases."""

from __future__ import annotations

from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import (
    MROPE,
    MROPE_KEYS,
    attention_of,
    gated_of,
    model_of,
    with_windows,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.qwen2 import qwen_windows
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    layer = Layer(attention_of(file, qk_norm="head"), gated_of(file))
    if file.is_gguf:
        file.ignore(*MROPE_KEYS)
    return model_of(file, "qwen3", with_windows(layer, qwen_windows(file)), own=MROPE)


FAMILY = Family("qwen3", program, "qwen3")
