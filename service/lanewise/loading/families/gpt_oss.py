"""gpt-oss: experts with biases, attention sinks, and a window in every other layer."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import (
    hf_attention,
    hf_model,
    hf_n_layers,
    hf_windows,
    with_windows,
)
from lanewise.loading.families.experts import (
    EXPERT_ROLES,
    flatten_gguf_experts,
    gguf_experts,
    hf_name,
    layers_of_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_model,
    gguf_n_layers,
    gguf_post_attention_norm,
    gguf_windows,
)
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Experts, Layer, ModelConfig
from lanewise.loading.rearranging import Bytes, Rearranged
from lanewise.loading.sources import Sources

THETA = 150000.0
ALPHA, LIMIT = 1.702, 7.0  # of the clamped activation
HEAD_DIM, WINDOW = 64, 128  # of configs that do not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    n_layers = hf_n_layers(fields, sources)
    experts = Experts(
        n=fields.integer("num_local_experts", default=128),
        n_used=fields.integer("num_experts_per_tok", default=4),
        size=fields.integer("intermediate_size"),
        router="top_softmax",
        router_bias=True,
        activation="clamped",
        limit=round_to_f32(fields.number("swiglu_limit", default=LIMIT)),
        alpha=round_to_f32(fields.number("swiglu_alpha", default=ALPHA)),
        bias=True,
    )
    attention = replace(hf_attention(fields, sources, HEAD_DIM, qkv_bias=True), sinks=True)
    window = fields.integer("sliding_window", default=WINDOW)
    windows = hf_windows(fields, window, [number % 2 == 0 for number in range(n_layers)])
    layers = with_windows(Layer(attention, experts), windows)
    return hf_model(fields, "gpt_oss", layers, theta=THETA)


def even_rows(rows: Bytes) -> Bytes:
    """Return gate of [experts, gate and up in turn, bytes]."""
    return rows[:, 0::2]


def odd_rows(rows: Bytes) -> Bytes:
    """Return up of [experts, gate and up in turn, bytes]."""
    return rows[:, 1::2]


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Take gate and up apart, which come in turns, and make rows of GGUF's MXFP4 blocks.

    Experts that are not quantized have their inputs first.
    """
    tensors = Rearranged(sources)
    for layer, experts in layers_of_experts(config):
        folder = f"model.layers.{layer}.mlp"
        for part in ("weight", "bias"):
            role = Role.ROUTER if part == "weight" else Role.ROUTER_BIAS
            tensors.rename(f"{folder}.router.{part}", hf_name(role, layer))
        for fused in ("gate_up_proj", "down_proj"):
            name = f"{folder}.experts.{fused}"
            tensors.transpose_experts(name)
            tensors.join_mxfp4(f"{name}_blocks", f"{name}_scales", name)
        split_in_turns(tensors, layer, experts.size)
    return tensors.out


def split_in_turns(tensors: Rearranged, layer: int, size: int) -> None:
    """Take gate and up apart, and their biases."""
    folder = f"model.layers.{layer}.mlp.experts"
    gate, up, down = (hf_name(role, layer) for role in EXPERT_ROLES)
    parts = {gate: even_rows, up: odd_rows}
    tensors.split_experts(f"{folder}.gate_up_proj", parts, size)
    tensors.flatten(f"{folder}.down_proj", down)
    gate, up, down = (hf_name(Role[f"{role.name}_BIAS"], layer) for role in EXPERT_ROLES)
    parts = {gate: even_rows, up: odd_rows}
    tensors.split_experts(f"{folder}.gate_up_proj_bias", parts, size)
    tensors.flatten(f"{folder}.down_proj_bias", down, dims=2)


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata. The ends of YaRN's ramp are no whole numbers, which no key says."""
    experts = replace(
        gguf_experts(fields, sources, "top_softmax", renormalize=False),
        activation="clamped",
        limit=LIMIT,
        alpha=round_to_f32(ALPHA),
    )
    attention = replace(gguf_attention(fields, sources, qkv_bias=True), sinks=True)
    windows = gguf_windows(fields, gguf_n_layers(fields, sources), period=2)
    layers = with_windows(Layer(attention, experts), windows)
    return gguf_model(fields, sources, "gpt_oss", layers, THETA, truncate=False)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Name the second norm, and flatten."""
    tensors = Rearranged(sources)
    gguf_post_attention_norm(tensors, config)
    return flatten_gguf_experts(tensors.out, config)


FAMILY = Family(
    "gpt_oss",
    from_hf,
    "gpt-oss",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
    own_quantizations=("mxfp4",),
)
