"""Llama 4: attention in chunks, layers without positions, experts with weighted inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Attention, ModelConfig
from lanewise.loading.families.common import attention_of, model_of, n_layers_of
from lanewise.loading.families.experts import (
    experts_of,
    first_half,
    flatten_gguf_experts,
    layers_of_experts,
    mixture_of,
    rename_shared,
    second_half,
)
from lanewise.loading.families.family import Family
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

NAME = "llama4_text"
KINDS = ("full_attention", "chunked_attention")
PERIOD = 4  # one layer of so many has no positions, and attends to all
CHUNK = SCALED = 8192  # what GGUF files mean, and for scales of queries what configs leave out
SCALE = 0.1
BLOCK = 32  # tokens; a chunk is some of these
PLAIN = 128  # experts of the model whose queries and keys have no norm, in GGUF files
FFN = "model.layers.{}.feed_forward"
THETA = 500000.0


def program(file: ModelFile) -> ModelConfig:
    """Read a file, or the text_config of a config.json."""
    n_layers = n_layers_of(file)
    if not file.is_gguf:
        file.ignore("router_jitter_noise")
    size = 0 if file.is_gguf else file.integer("intermediate_size")
    names = {"n": "num_local_experts", "size": "intermediate_size"}
    experts = experts_of(file, "sigmoid", False, shared_size=size, weighs_inputs=True, **names)
    dense = file if file.is_gguf else file.called({"intermediate_size": "intermediate_size_mlp"})
    turning, chunked = turning_layers(file, n_layers), chunked_layers(file, n_layers)
    chunk = chunk_of(file) if any(chunked) else 0
    attention = attention_of(file)
    norm = "turned" if has_norm(file) else "none"
    mixers = [
        replace(
            attention if turns else scaled(file, replace(attention, rope=None)),
            qk_norm=norm if turns else "none",
            chunk=chunk if in_chunks else 0,
        )
        for turns, in_chunks in zip(turning, chunked, strict=True)
    ]
    is_sparse = [False] * n_layers if file.is_gguf else sparse_layers_of(file, n_layers)
    layers = mixture_of(dense, attention, experts, is_sparse)
    layers = [replace(layer, attention=mixer) for layer, mixer in zip(layers, mixers, strict=True)]
    return model_of(file, NAME, layers, THETA, own_kinds=True)


def listed(file: ModelFile, key: str, n_layers: int, known: tuple[Any, ...]) -> list[bool] | None:
    """Return whether each layer's value is the second of two."""
    values = file.raw(key)
    if values is None or values == []:
        return None
    if not isinstance(values, list) or len(values) < n_layers or set(values) - set(known):
        raise file.fail(key, f"{n_layers} times {' or '.join(map(repr, known))}")
    return [value == known[1] for value in values[:n_layers]]


def turning_layers(file: ModelFile, n_layers: int) -> list[bool]:
    """Return which layers have positions."""
    period, found = PERIOD, None
    if file.is_gguf and file.raw("sliding_window") == 0:
        return [True] * n_layers
    if not file.is_gguf:
        period = file.integer("no_rope_layer_interval", default=PERIOD)
        found = listed(file, "no_rope_layers", n_layers, (0, 1))
    return found or [(number + 1) % period != 0 for number in range(n_layers)]


def chunked_layers(file: ModelFile, n_layers: int) -> list[bool]:
    """Return which layers attend to their chunk only."""
    if not file.is_gguf:
        found = listed(file, "layer_types", n_layers, KINDS)
        has_chunks = file.meant("attention_chunk_size") is not None
        return found or [turns and has_chunks for turns in turning_layers(file, n_layers)]
    if file.raw("sliding_window") == 0:
        return [False] * n_layers
    key = "{arch}.attention.sliding_window_pattern"
    pattern = file.raw(key)
    if isinstance(pattern, list):
        return listed(file, key, n_layers, (False, True)) or []
    period = file.integer(key, default=PERIOD)
    return [(number + 1) % period != 0 for number in range(n_layers)]


def chunk_of(file: ModelFile) -> int:
    """Return the tokens of a chunk."""
    if file.is_gguf:
        return CHUNK
    key = "attention_chunk_size"
    chunk = file.integer(key)
    if chunk % BLOCK:
        raise file.fail(key, f"a multiple of {BLOCK}")
    return chunk


def scaled(file: ModelFile, attention: Attention) -> Attention:
    """Return attention whose queries are scaled by their position, if they are."""
    if file.is_gguf:
        return replace(attention, position_scale=(round_to_f32(SCALE), SCALED), position_offset=1)
    if not file.meant("attn_temperature_tuning"):
        return attention
    scale = round_to_f32(file.number("attn_scale", default=SCALE))
    steps = file.integer("floor_scale", default=SCALED)
    return replace(attention, position_scale=(scale, steps), position_offset=1)


def has_norm(file: ModelFile) -> bool:
    """Whether queries and keys that turn have a norm, which has no weights."""
    if file.is_gguf:
        return file.integer("num_local_experts") != PLAIN
    return file.flag("use_qk_norm", default=True)


def sparse_layers_of(file: ModelFile, n_layers: int) -> list[bool]:
    """Return which layers of a config.json have experts."""
    numbers, step = file.raw("moe_layers"), file.integer("interleave_moe_layer_step", default=1)
    if numbers is None:
        return [(number + 1) % step == 0 for number in range(n_layers)]
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise file.fail("moe_layers", "a list of layers")
    return [number in numbers for number in range(n_layers)]


def add_norms(tensors: Rearranged, config: ModelConfig) -> None:
    """Add the weights of norms that have none."""
    for number, layer in enumerate(config.layers):
        if layer.attention is not None and layer.attention.qk_norm != "none":
            for role in (Role.ATTN_Q_NORM, Role.ATTN_K_NORM):
                tensors.add_ones(tensors.usual(role, number), layer.attention.head_dim)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename FFNs, make matrices of experts, whose inputs come first."""
    sparse = dict(layers_of_experts(config))
    for number in range(config.n_layers):
        folder = FFN.format(number)
        if number not in sparse:
            for part in ("gate", "up", "down"):
                role = Role[f"FFN_{part.upper()}"]
                tensors.rename(f"{folder}.{part}_proj.weight", tensors.usual(role, number))
            continue
        tensors.rename(f"{folder}.router.weight", tensors.usual(Role.ROUTER, number))
        rename_shared(tensors, number, "feed_forward.shared_expert")
        gate, up, down = (
            tensors.usual(role, number)
            for role in (Role.EXPERTS_GATE, Role.EXPERTS_UP, Role.EXPERTS_DOWN)
        )
        for fused in ("gate_up_proj", "down_proj"):
            tensors.transpose_experts(f"{folder}.experts.{fused}")
        halves = {gate: first_half, up: second_half}
        tensors.split_experts(f"{folder}.experts.gate_up_proj", halves, sparse[number].size)
        tensors.flatten(f"{folder}.experts.down_proj", down)
    add_norms(tensors, config)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Make matrices of experts."""
    flatten_gguf_experts(tensors, config)
    add_norms(tensors, config)


FAMILY = Family(
    NAME,
    program,
    "llama4",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
