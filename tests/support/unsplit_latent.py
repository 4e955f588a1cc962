"""GGUF files of latent attention as they were written before April 2025: keys and values in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from family_gguf import gguf_arrays, write_gguf
from family_models import Arrays, FamilyModel, family_model, values_of

Kind = gguf.GGMLQuantizationType
# The metadata of such files.
OLD = {"attention.head_count_kv": 4, "attention.key_length": 48, "attention.value_length": 32}
SPLIT = ("attn_k_b.weight", "attn_v_b.weight")
UNSPLIT = "attn_kv_b.weight"


def unsplit(model: FamilyModel) -> Arrays:
    """A GGUF file's tensors with keys and values in one."""
    arrays = {name: one for name, one in gguf_arrays(model).items() if not name.endswith(SPLIT)}
    for number in range(model.config["num_hidden_layers"]):
        name = f"model.layers.{number}.self_attn.kv_b_proj.weight"
        arrays[f"blk.{number}.{UNSPLIT}"] = model.tensors[name]
    return arrays


def of_rank(name: str, rank: int) -> FamilyModel:
    """A case's model with latents of so many values."""
    model = family_model(name)
    old, turned = model.config["kv_lora_rank"], model.config["qk_rope_head_dim"]
    tensors = dict(model.tensors)
    for key, array in model.tensors.items():
        shape = array.shape
        if "kv_a_proj" in key:
            assert shape[0] == old + turned
            tensors[key] = values_of(key, (rank + turned, shape[1]))
        elif "kv_a_layernorm" in key:
            tensors[key] = values_of(key, (rank,))
        elif "kv_b_proj" in key:
            tensors[key] = values_of(key, (shape[0], rank))
    return replace(model, config=model.config | {"kv_lora_rank": rank}, tensors=tensors)


def blocks_like(values: np.ndarray, kind: Kind, seed: int) -> np.ndarray:
    """Random blocks of a type, as many as hold values of this shape, and about as large."""
    weights, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = values.shape
    data = np.random.default_rng(seed).integers(
        0, 256, (rows, columns // weights, n_bytes), dtype=np.uint8
    )
    halves = {"Q6_K": (208,), "Q3_K": (108,), "Q2_K": (80, 82)}
    both = (0, 2) if kind.name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else (0,)
    for scale in (np.float16(1), None):
        if scale is None:
            found = gguf.dequantize(data.reshape(rows, -1), kind)
            scale = np.float16(values.std() / found.std())
        for at in halves.get(kind.name, both):
            data[..., at : at + 2] = np.array([scale]).view(np.uint8)
    return data.reshape(rows, -1)


def write_blocks(
    model: FamilyModel, path: Path, kinds: Mapping[int, Kind]
) -> tuple[Path, dict[int, np.ndarray]]:
    """Write an old file, in some of whose layers keys and values are blocks of these types.

    Return it and the weights that the blocks stand for, by layer.
    """
    arrays, types, weights = unsplit(model), {}, {}
    for layer, kind in kinds.items():
        name = f"blk.{layer}.{UNSPLIT}"
        arrays[name] = blocks_like(arrays[name], kind, layer)
        types[name], weights[layer] = kind, gguf.dequantize(arrays[name], kind)
    return write_typed(model, path, arrays, types), weights


def write_typed(model: FamilyModel, path: Path, arrays: Arrays, types: Mapping[str, Any]) -> Path:
    """Write an old file some of whose arrays are bytes of other types."""
    original = gguf.GGUFWriter.add_tensor

    def add(self: gguf.GGUFWriter, name: str, array: Any, **more: Any) -> None:
        original(self, name, array, raw_dtype=types.get(name), **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", add)
        return write_gguf(model, path, OLD, arrays)


def with_weights(model: FamilyModel, weights: Mapping[int, np.ndarray]) -> FamilyModel:
    """The model with these weights of keys and values."""
    named = {f"model.layers.{n}.self_attn.kv_b_proj.weight": w for n, w in weights.items()}
    assert named.keys() <= model.tensors.keys()
    return replace(model, tensors=model.tensors | named)


def keys_and_values(model: FamilyModel, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys [heads, still, rank] and values [heads, value_dim, rank] of one matrix."""
    still, values = model.config["qk_nope_head_dim"], model.config["v_head_dim"]
    heads = weights.reshape(-1, still + values, weights.shape[1])
    return heads[:, :still], heads[:, still:]


def keys_rounded(model: FamilyModel, weights: np.ndarray) -> np.ndarray:
    """The same weights with the keys of each head, turned around, rounded to Q8_0."""
    keys, values = keys_and_values(model, weights)
    turned = np.ascontiguousarray(keys.swapaxes(1, 2))
    rounded = gguf.dequantize(gguf.quantize(turned, Kind.Q8_0), Kind.Q8_0)
    return np.concatenate([rounded.swapaxes(1, 2), values], axis=1).reshape(weights.shape)
