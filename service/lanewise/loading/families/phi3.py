"""Phi-3, 3.5, 4 and 4-mini: Llama with fused matrices, LongRoPE and perhaps partial RoPE."""

from __future__ import annotations

from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import (
    attention_of,
    gated_of,
    model_of,
    window_of,
    windows_of,
    with_windows,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import QKV, qkv_rows, split_gate_and_up, split_roles
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    layer = Layer(attention_of(file), gated_of(file))
    return model_of(file, "phi3", with_windows(layer, windows_of(file, window_of(file))))


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Split Q, K and V, and gate and up."""
    for number in range(config.n_layers):
        name = f"model.layers.{number}.self_attn.qkv_proj"
        split_roles(tensors, name, QKV, qkv_rows(config.heads), number)
    split_gate_and_up(tensors, config)


FAMILY = Family(
    "phi3",
    program,
    "phi3",
    hf_tensors=hf_tensors,
    gguf_tensors=split_gate_and_up,
    gguf_is_usual=False,
)
