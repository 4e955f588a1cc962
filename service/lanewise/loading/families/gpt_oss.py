"""gpt-oss: experts with biases, attention sinks, and a window in every other layer."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import (
    attention_of,
    by_turns,
    model_of,
    n_layers_of,
    window_of,
    windows_of,
    with_windows,
)
from lanewise.loading.families.experts import (
    EXPERT_ROLES,
    experts_of,
    flatten_gguf_experts,
    layers_of_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import gguf_post_attention_norm
from lanewise.loading.files.rearranging import Bytes, Rearranged
from lanewise.loading.programs.model_file import ModelFile

THETA = 150000.0
ALPHA, LIMIT = 1.702, 7.0  # of the clamped activation


def program(file: ModelFile) -> ModelConfig:
    """Read a file; YaRN's ramp is not rounded, which no GGUF key says."""
    experts = experts_of(
        *(file, "top_softmax", False),
        n="num_local_experts",
        size="intermediate_size",
        router_bias=True,
        activation="clamped",
        limit=round_to_f32(file.number("swiglu_limit", default=LIMIT)),
        alpha=round_to_f32(file.number("swiglu_alpha", default=ALPHA)),
        bias=True,
    )
    attention = replace(attention_of(file, qkv_bias=True), sinks=True)
    have = by_turns(n_layers_of(file), 2)
    windows = windows_of(file, window_of(file, always=True), have)
    layers = with_windows(Layer(attention, experts), windows)
    return model_of(file, "gpt_oss", layers, theta=THETA, truncate=False)


def even_rows(rows: Bytes) -> Bytes:
    """Return gate of interleaved [experts, gate and up in turn, bytes]."""
    return rows[:, 0::2]


def odd_rows(rows: Bytes) -> Bytes:
    """Return up of interleaved [experts, gate and up in turn, bytes]."""
    return rows[:, 1::2]


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Split gate and up, which are interleaved, and make rows of GGUF's MXFP4 blocks.

    Experts that are not quantized have their inputs first.
    """
    for layer, experts in layers_of_experts(config):
        folder = f"model.layers.{layer}.mlp"
        for part in ("weight", "bias"):
            role = Role.ROUTER if part == "weight" else Role.ROUTER_BIAS
            tensors.rename(f"{folder}.router.{part}", tensors.usual(role, layer))
        for fused in ("gate_up_proj", "down_proj"):
            name = f"{folder}.experts.{fused}"
            tensors.transpose_experts(name)
            tensors.join_mxfp4(f"{name}_blocks", f"{name}_scales", name)
        split_in_turns(tensors, layer, experts.size)


def split_in_turns(tensors: Rearranged, layer: int, size: int) -> None:
    """Split gate and up, and their biases."""
    folder = f"model.layers.{layer}.mlp.experts"
    gate, up, down = (tensors.usual(role, layer) for role in EXPERT_ROLES)
    parts = {gate: even_rows, up: odd_rows}
    tensors.split_experts(f"{folder}.gate_up_proj", parts, size)
    tensors.flatten(f"{folder}.down_proj", down)
    gate, up, down = (tensors.usual(Role[f"{role.name}_BIAS"], layer) for role in EXPERT_ROLES)
    parts = {gate: even_rows, up: odd_rows}
    tensors.split_experts(f"{folder}.gate_up_proj_bias", parts, size)
    tensors.flatten(f"{folder}.down_proj_bias", down, dims=2)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename the second norm, and flatten experts."""
    gguf_post_attention_norm(tensors, config)
    flatten_gguf_experts(tensors, config)


FAMILY = Family(
    "gpt_oss",
    program,
    "gpt-oss",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
    own_quantizations=("mxfp4",),
)
