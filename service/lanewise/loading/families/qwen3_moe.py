"""Qwen 3 with experts, and Coder, which differs only in its chat template."""

from __future__ import annotations

from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families.common import (
    MROPE,
    MROPE_KEYS,
    attention_of,
    check_activation,
    model_of,
    window_of,
)
from lanewise.loading.families.experts import (
    count_name,
    experts_of,
    flatten_gguf_experts,
    mixture_of,
    sparse_layers_of,
    stack_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a file; all published models renormalize chosen weights, which GGUF files imply.

    GGUF files have no window.
    """
    check_activation(file)
    window = None if file.is_gguf else window_of(file, switched=True)
    attention = attention_of(file, qk_norm="head", window=window)
    renormalize = file.flag("norm_topk_prob", default=file.is_gguf)
    experts = experts_of(file, "softmax", renormalize, n=count_name(file))
    layers = mixture_of(file, attention, experts, sparse_layers_of(file))
    if file.is_gguf:
        file.ignore(*MROPE_KEYS)
    return model_of(file, "qwen3_moe", layers, own=MROPE)


FAMILY = Family(
    "qwen3_moe", program, "qwen3moe", hf_tensors=stack_experts, gguf_tensors=flatten_gguf_experts
)
