"""Finds the matrices of a model that a LoRA module adapts, by the module's name and rows.

The rows of lora_B are the module's outputs. So the family's steps from the file's tensors to the
usual names apply to lora_B as well: fused modules are split and rows are reordered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.names import HF, TENSOR_NAMES, is_vector
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.recurrences import GatedDelta
from lanewise.loading.base.sources import SourceTensor
from lanewise.loading.families.table import family_named
from lanewise.loading.files.rearranging import Rearranged, Rows
from lanewise.loading.programs.native_program import layer_shapes
from lanewise.loading.programs.text_part import text_tensors
from lanewise.loading.programs.turned_rows import heads_of, in_halves, turned_of

QUERIES_KEYS_VALUES = (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V)
ADAPTED = (
    *(*QUERIES_KEYS_VALUES, Role.ATTN_GATE, Role.ATTN_OUTPUT),
    *(Role.STATE_IN, Role.STATE_KEYS, Role.STATE_VALUES, Role.STATE_GATE, Role.STATE_DECAY),
    *(Role.STATE_BETA, Role.STATE_OUT),
    *(Role.FFN_GATE, Role.FFN_UP, Role.FFN_DOWN),
)
# Advice for an adapter that changes more than these matrices.
MERGE = (
    "merge it into its model with PEFT's merge_and_unload(), save the result with"
    " save_pretrained() and serve that"
)
RATES = (Role.STATE_DECAY, Role.STATE_BETA)
# Matrices, and those whose products they read if a layer has them.
DOWN = {Role.STATE_DECAY: Role.STATE_DECAY_DOWN, Role.STATE_GATE: Role.STATE_GATE_DOWN}


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of lora_B that belong to one matrix, in the library's order."""

    role: Role
    layer: int
    rows: int
    data: memoryview
    inputs: Rows | None = None  # the column order of lora_A; None: unchanged


def not_supported(what: str, config: ModelConfig, layer: int | None = None) -> ModelFileError:
    """The error that lists the modules an adapter may change, in one layer or any; no experts."""
    numbers = range(config.n_layers) if layer is None else [layer]
    roles = {role for number in numbers for role in _roles_of(config, number)}
    names = [
        TENSOR_NAMES[role][HF].removeprefix("model.layers.{}.").removesuffix(".weight")
        for role in ADAPTED
        if role in roles
    ]
    place = "this model" if layer is None else f"layer {layer}"
    return ModelFileError(
        f"{what} is not supported; accepted for {place} are lora_A and lora_B of the modules for"
        f" {', '.join(names)}; {MERGE}"
    )


def parts_of(module: str, b: SourceTensor, config: ModelConfig) -> Iterator[Part]:
    """Split a module's lora_B (outputs, rank) by matrix; ModelFileError if it is no matrix here."""
    if ".experts." in module:  # the experts of a layer are one tensor
        raise not_supported(b.where, config)
    family, name = family_named(config.architecture), f"{module}.weight"
    own = Rearranged({name: b})
    if family.hf_inputs_first:
        own.transpose(name)  # as the module's weight is stored
    text = text_tensors(own.out, b.where)
    if not text:  # a part for images or sound
        raise not_supported(b.where, config)
    named = Rearranged(text)
    family.hf_tensors(named, config)
    family.lora_values(named, config)
    found = 0
    for name, tensor in named.out.items():
        role, layer = _role_of(name, config)
        if role is not None and is_vector(role):
            continue  # ones that the family adds where files lack them
        if role is None or role not in ADAPTED:
            break
        if role not in _roles_of(config, layer):
            raise not_supported(b.where, config, layer)
        found += 1
        yield _part(tensor, role, layer, config, interleaved=family.hf_interleaved_rope)
    else:
        if found:
            return
    raise not_supported(b.where, config)


def _roles_of(config: ModelConfig, layer: int) -> Mapping[Role, tuple[int, int]]:
    """Return a layer's matrices that can be adapted.

    Queries of latent attention cannot, of attention to shared rows no matrix can, and neither can
    what reads a product of a state's input.
    """
    attention, shapes = config.layers[layer].attention, layer_shapes(config, layer)
    refused = {role for role, first in DOWN.items() if first in shapes}
    if attention is not None and (attention.latent_rank > 0 or attention.shared_rows):
        refused |= {*QUERIES_KEYS_VALUES}
    if attention is not None and attention.shared_rows:
        refused.add(Role.ATTN_OUTPUT)
    return {
        role: shape for role, shape in shapes.items() if role in ADAPTED and role not in refused
    }


def _role_of(name: str, config: ModelConfig) -> tuple[Role | None, int]:
    for part in name.split("."):
        if part.isdecimal():
            layer = int(part)
            for role, names in TENSOR_NAMES.items():
                if names[HF].format(layer) == name and layer < config.n_layers:
                    return role, layer
    return None, 0


def _part(
    tensor: SourceTensor, role: Role, layer: int, config: ModelConfig, *, interleaved: bool
) -> Part:
    outputs, rank = layer_shapes(config, layer)[role][0], tensor.shape[1]
    if tensor.shape[0] != outputs:
        raise ModelFileError(
            f"{tensor.where}: lora_B has shape ({tensor.shape[0]}, {rank}); the model needs"
            f" {(outputs, rank)}"
        )
    order = _order(config, role, layer, interleaved=interleaved)
    data = tensor.view()
    if order is not None:
        data = memoryview(np.frombuffer(data, np.uint8).reshape(outputs, -1)[order].tobytes())
    inputs = _heads_in_turn(config, layer) if role is Role.STATE_OUT else None
    return Part(role, layer, outputs, data, inputs)


def _order(config: ModelConfig, role: Role, layer: int, *, interleaved: bool) -> Rows | None:
    """Return the module's row for each row in the library's order; None: the same order."""
    attention = config.layers[layer].attention
    if heads := heads_of(config, role, layer):
        assert attention is not None
        return (
            in_halves(heads, attention.head_dim, turned_of(config, layer)) if interleaved else None
        )
    values = _heads_in_turn(config, layer)
    if values is None or role not in (Role.STATE_IN, Role.STATE_GATE, *RATES):
        return None
    state = config.layers[layer].state
    assert isinstance(state, GatedDelta)
    if role in RATES:
        return values[:: state.value_dim] // state.value_dim
    if role is Role.STATE_GATE:
        return values
    keys = 2 * state.n_key_heads * state.key_dim
    return np.concatenate([np.arange(keys), keys + values])


def _heads_in_turn(config: ModelConfig, layer: int) -> Rows | None:
    """Return the order that GGUF files have for the values of a state's heads."""
    state = config.layers[layer].state
    if not isinstance(state, GatedDelta) or not state.keys_in_turn:
        return None
    numbers = np.arange(state.n_heads * state.value_dim)
    by_key = numbers.reshape(state.n_key_heads, -1, state.value_dim)
    return by_key.swapaxes(0, 1).reshape(-1)
