"""Qwen 1.5 and 2 with experts, and a shared expert with a gate."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import (
    attention_of,
    model_of,
    n_layers_of,
    window_of,
    windows_of,
)
from lanewise.loading.families.experts import (
    flatten_gguf_experts,
    layers_of_experts,
    mixture_of,
    shared_experts_of,
    sparse_layers_of,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a file; GGUF files have no windows."""
    bias = not file.is_gguf and file.flag("qkv_bias", default=True)
    attention, n_layers = attention_of(file, qkv_bias=bias), n_layers_of(file)
    experts = shared_experts_of(file, file.flag("norm_topk_prob", default=False))
    layers = mixture_of(file, attention, experts, sparse_layers_of(file))
    windows = [None] * n_layers if file.is_gguf else moe_windows(file, n_layers)
    layers = [
        Layer(replace(attention, window=window), layer.ffn)
        for layer, window in zip(layers, windows, strict=True)
    ]
    return model_of(file, "qwen2_moe", layers)


def moe_windows(file: ModelFile, n_layers: int) -> list[int | None]:
    """Return each layer's window: every other layer below max_window_layers may have it."""
    below = file.integer("max_window_layers", default=28, least=0)
    have = [number < below and number % 2 == 0 for number in range(n_layers)]
    return windows_of(file, window_of(file, switched=True), have)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Stack experts, and reshape the shared gate's one row to a vector."""
    for layer, experts in layers_of_experts(config):
        stack_hf_experts(tensors, layer, experts)
        tensors.flatten(tensors.usual(Role.SHARED_ROUTER, layer), dims=2)


FAMILY = Family(
    "qwen2_moe", program, "qwen2moe", hf_tensors=hf_tensors, gguf_tensors=flatten_gguf_experts
)
