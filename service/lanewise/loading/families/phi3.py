"""Phi-3, 3.5, 4 and 4-mini: Llama with fused matrices, LongRoPE and half-turned heads."""

from __future__ import annotations

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import (
    attention_of,
    gated_of,
    model_of,
    window_of,
    windows_of,
    with_windows,
)
from lanewise.loading.families.experts import gguf_name, hf_name
from lanewise.loading.families.family import Family
from lanewise.loading.model_file import ModelFile
from lanewise.loading.program import Gated, Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

PARTS = (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.FFN_GATE, Role.FFN_UP)


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    layer = Layer(attention_of(file), gated_of(file))
    return model_of(file, "phi3", with_windows(layer, windows_of(file, window_of(file))))


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Take Q, K and V apart, and gate and up."""
    tensors = Rearranged(sources)
    for number in range(config.n_layers):
        folder = f"model.layers.{number}"
        names = [hf_name(role, number) for role in PARTS]
        split(tensors, config, number, f"{folder}.self_attn.qkv_proj.weight", names[:3])
        split(tensors, config, number, f"{folder}.mlp.gate_up_proj.weight", names[3:])
    return tensors.out


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Take gate and up apart, which are called up."""
    tensors = Rearranged(sources)
    for number in range(config.n_layers):
        gate, up = (gguf_name(role, number) for role in PARTS[3:])
        if gate not in sources:
            split(tensors, config, number, up, [gate, up])
    return tensors.out


def split(
    tensors: Rearranged, config: ModelConfig, number: int, fused: str, names: list[str]
) -> None:
    """Cut a fused matrix into three, Q, K and V, or two, gate and up."""
    layer = config.layers[number]
    assert isinstance(layer.ffn, Gated)
    heads = (config.heads.n_heads, *(config.heads.n_kv_heads,) * 2)
    rows = [n * config.heads.head_dim for n in heads]
    if len(names) == 2:
        rows = [layer.ffn.size] * 2
    tensors.split_rows(fused, dict(zip(names, rows, strict=True)))


FAMILY = Family(
    "phi3",
    program,
    "phi3",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
