"""Tiny models of families with a head that predicts further tokens, written with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from family_gguf import gguf_arrays, n_layers_of, write_gguf
from family_models import Arrays, FamilyModel, family_model, values_of, write_model
from published_configs import CASES

CASE_NAMES = (
    *("qwen3_5", "qwen3_5_moe", "qwen3_next", "glm4_moe"),
    *("glm4_moe_lite", "deepseek_v32", "glm_moe_dsa"),
)
# Parts of the head by the names that files have of them, GLM's first.
PARTS = {
    "eh_proj.weight": "fc.weight",
    "enorm.weight": "pre_fc_norm_embedding.weight",
    "hnorm.weight": "pre_fc_norm_hidden.weight",
    "shared_head.norm.weight": "norm.weight",
}

GGUF_PARTS = {
    "eh_proj.weight": "eh_proj.weight",
    "enorm.weight": "enorm.weight",
    "hnorm.weight": "hnorm.weight",
    "shared_head.norm.weight": "shared_head_norm.weight",
}


def head_tensors(model: FamilyModel) -> Arrays:
    """A head's tensors, as one more layer like the last one with attention."""
    n_layers, hidden = n_layers_of(model.config), model.config["hidden_size"]
    last = max(
        int(name.split(".")[2])
        for name in model.tensors
        if name.endswith("self_attn.o_proj.weight")
    )
    found: Arrays = {}
    for name, array in model.tensors.items():
        own, prefix = f"model.layers.{last}.", f"model.layers.{n_layers}."
        if name.startswith(own):
            new = prefix + name.removeprefix(own)
            found[new] = values_of(new, array.shape)
    shapes = {"eh_proj.weight": (hidden, 2 * hidden)}
    for part in PARTS:
        name = f"model.layers.{n_layers}.{part}"
        found[name] = values_of(name, shapes.get(part, (hidden,)))
    return found


def as_published(model: FamilyModel, head: Mapping[str, Any]) -> Arrays:
    """The head's tensors under the names that directories of the family have."""
    if model.name.startswith(("glm", "deepseek")):
        return dict(head)
    prefix = f"model.layers.{n_layers_of(model.config)}."
    found: Arrays = {}
    for name, array in head.items():
        part = name.removeprefix(prefix)
        found["mtp." + PARTS.get(part, f"layers.0.{part}")] = array
    return found


def write_directory(
    name: str,
    folder: Path,
    head: Arrays | None = None,
    tensors: Arrays | None = None,
    **changes: Any,
) -> Path:
    """Write a case with a head; ``tensors`` take the place of some of the model's."""
    model = family_model(name)
    head = head_tensors(model) if head is None else head
    arrays = model.tensors | (tensors or {}) | as_published(model, head)
    return write_model(replace(model, tensors=arrays), folder, CASES[name] | changes)


def write_file(name: str, path: Path, head: Arrays | None = None) -> Path:
    """Write a GGUF file of it, in which the head is the last of the layers."""
    model = family_model(name)
    config = dict(model.config)
    config["num_hidden_layers"] = n_layers_of(config) + 1
    arrays = model.tensors | (head_tensors(model) if head is None else head)
    longer = FamilyModel(model.name, config, arrays)
    prefix = f"model.layers.{n_layers_of(model.config)}."
    found: Arrays = {}
    for key, array in gguf_arrays(longer).items():  # whose names not every gguf-py knows
        part = GGUF_PARTS.get(key.removeprefix(prefix))
        found[f"blk.{n_layers_of(model.config)}.nextn.{part}" if part else key] = array
    return write_gguf(longer, path, {"nextn_predict_layers": 1}, found)


def cyclic_tensors(model: FamilyModel) -> tuple[Arrays, Arrays]:
    """A head, and tensors of the model, that both write the token after the last one.

    Nothing is added to an embedding, and the head of the model knows each by the one before it.
    """
    silent = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
    tensors, head = (
        {name: np.zeros_like(array) for name, array in arrays.items() if name.endswith(silent)}
        for arrays in (model.tensors, head_tensors(model))
    )
    embedding, hidden = model.tensors["model.embed_tokens.weight"], model.config["hidden_size"]
    tensors["model.norm.weight"] = np.zeros(hidden, np.float32)
    tensors["lm_head.weight"] = np.roll(embedding, 1, axis=0)
    head = head_tensors(model) | head
    prefix = f"model.layers.{n_layers_of(model.config)}."
    for part in PARTS:
        head[prefix + part] = np.zeros_like(head[prefix + part])
    head[prefix + "eh_proj.weight"][:, :hidden] = np.eye(hidden, dtype=np.float32)
    return head, tensors
