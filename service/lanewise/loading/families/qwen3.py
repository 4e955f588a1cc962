"""Qwen 3: Qwen 2 with norms of Q and K instead of biases."""

from __future__ import annotations

from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import attention_of, gated_of, model_of, with_windows
from lanewise.loading.families.family import Family
from lanewise.loading.families.qwen2 import qwen_windows
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    layer = Layer(attention_of(file, qk_norm="head"), gated_of(file))
    return model_of(file, "qwen3", with_windows(layer, qwen_windows(file)))


FAMILY = Family("qwen3", program, "qwen3")
