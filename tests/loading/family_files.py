"""Tiny models of every family: what their programs are, and files as their makers write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from gguf_values import add_value, interleave, write_out
from lanewise.loading.binding import wanted_tensors
from lanewise.loading.checkpoint import Role
from lanewise.loading.formats import round_to_f32 as f32
from lanewise.loading.names import GGUF, HF, ORDERS, TENSOR_NAMES, is_vector
from lanewise.loading.program import Attention, Experts, Layer, ModelConfig, Rope

Arrays = dict[str, NDArray[Any]]
Weights = Mapping[tuple[Role, int], NDArray[np.float32]]

HIDDEN, FFN, VOCAB, CONTEXT, HEAD = 64, 96, 80, 256, 16
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}
PLAIN_ROPE = Rope(10000.0, HEAD)
PLAIN = Attention(n_heads=4, n_kv_heads=2, head_dim=HEAD, rope=0)
EXPERTS = Experts(n=4, n_used=2, size=32, router="softmax")
EXPERT_PARTS = {
    Role.EXPERTS_GATE: "gate_proj",
    Role.EXPERTS_UP: "up_proj",
    Role.EXPERTS_DOWN: "down_proj",
}
EXPERT_BIASES = (Role.EXPERTS_GATE_BIAS, Role.EXPERTS_UP_BIAS, Role.EXPERTS_DOWN_BIAS)


@dataclass(frozen=True)
class Family:
    """One family: what its files say, and what a program is made of them."""

    name: str
    arch: str | None
    layers: tuple[Layer, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    rope: Rope = PLAIN_ROPE
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the program
    hf: Callable[[Arrays], Arrays] = lambda arrays: arrays
    gguf: Callable[[Arrays], Arrays] = lambda arrays: arrays
    gguf_interleaved: bool = False
    hf_interleaved: bool = False

    def program(self) -> ModelConfig:
        """What both kinds of file mean."""
        plain = ModelConfig(
            architecture=self.name,
            hidden_size=HIDDEN,
            vocab_size=VOCAB,
            context_length=CONTEXT,
            rms_norm_eps=f32(1e-5),
            tied_embeddings=False,
            ropes=(self.rope,),
            layers=self.layers,
        )
        return replace(plain, **self.changes)

    def weights(self) -> Weights:
        """Random values of every tensor, in the order of the program."""
        random = np.random.default_rng(3)
        return {
            (role, layer): random.standard_normal(
                (cols,) if is_vector(role) else (rows, cols), np.float32
            )
            for role, layer, (rows, cols) in wanted_tensors(self.program())
            if role not in ORDERS
        }


def renamed(arrays: Arrays, *pairs: tuple[str, str]) -> Arrays:
    """Names with some of their parts replaced."""
    found = {}
    for name, array in arrays.items():
        for old, new in pairs:
            name = name.replace(old, new)
        found[name] = array
    return found


def merged(arrays: Arrays, into: str, *parts: str) -> Arrays:
    """Matrices of each layer whose names have these parts, in order, as one."""
    found = {}
    for name, array in arrays.items():
        if parts[0] in name:
            found[name.replace(parts[0], into)] = np.concatenate(
                [arrays[name.replace(parts[0], part)] for part in parts], axis=-2
            )
        elif not any(part in name for part in parts):
            found[name] = array
    return found


def hf_arrays(family: Family, weights: Weights) -> Arrays:
    """Tensors as Hugging Face directories have them: one for each expert."""
    arrays: Arrays = {}
    for (role, layer), array in weights.items():
        ffn = family.layers[layer].ffn
        name = TENSOR_NAMES[role][HF].format(layer)
        if role in EXPERT_PARTS:
            assert isinstance(ffn, Experts)
            for number, part in enumerate(np.split(array, ffn.n)):
                at = f"model.layers.{layer}.mlp.experts.{number}.{EXPERT_PARTS[role]}.weight"
                arrays[at] = part
            continue
        heads = rope_heads(role, layer, family)
        if heads and family.hf_interleaved:
            array = interleave(array, heads)
        arrays[name] = array
    return family.hf(arrays)


def gguf_arrays(family: Family, weights: Weights) -> Arrays:
    """Tensors as GGUF files have them: experts in one of three dimensions."""
    arrays: Arrays = {}
    for (role, layer), array in weights.items():
        ffn = family.layers[layer].ffn
        if role in EXPERT_PARTS or role in EXPERT_BIASES:
            assert isinstance(ffn, Experts)
            array = array.reshape(ffn.n, -1, *array.shape[1:])
        heads = rope_heads(role, layer, family)
        if heads and family.gguf_interleaved:
            array = interleave(array, heads)
        arrays[TENSOR_NAMES[role][GGUF].format(layer)] = array
    return family.gguf(arrays)


def rope_heads(role: Role, layer: int, family: Family) -> int:
    attention = family.layers[layer].attention
    if role in (Role.ATTN_Q, Role.ATTN_Q_BIAS):
        return attention.n_heads
    return attention.n_kv_heads if role in (Role.ATTN_K, Role.ATTN_K_BIAS) else 0


def write_hf(folder: Path, family: Family, changes: Mapping[str, Any] | None = None) -> Path:
    """Write a directory; ``changes`` are of config.json."""
    folder.mkdir(parents=True)
    config = SIZES | {"model_type": family.name} | dict(family.config) | dict(changes or {})
    (folder / "config.json").write_text(json.dumps(config))
    arrays = hf_arrays(family, family.weights())
    save_file({n: np.ascontiguousarray(a) for n, a in arrays.items()}, folder / "model.safetensors")
    return folder


def write_gguf(path: Path, family: Family, changes: Mapping[str, Any] | None = None) -> Path:
    """Write a GGUF file; ``changes`` are of its metadata, whose keys lack the architecture."""
    assert family.arch is not None
    writer = gguf.GGUFWriter(path, family.arch)
    own = {
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "block_count": 2,
        "feed_forward_length": FFN,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD,
        "rope.freq_base": 10000.0,
        "vocab_size": VOCAB,
    }
    for key, value in (own | dict(family.metadata) | dict(changes or {})).items():
        add_value(writer, f"{family.arch}.{key}", value)
    for name, array in gguf_arrays(family, family.weights()).items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    write_out(writer)
    return path
