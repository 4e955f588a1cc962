"""Granite with windows and attention sinks; in GGUF files also with experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import Experts, Gated, Layer, ModelConfig, Rope
from lanewise.loading.families.common import (
    by_turns,
    check_activation,
    gated_of,
    model_of,
    n_layers_of,
    rope_of,
    window_of,
    windows_of,
)
from lanewise.loading.families.experts import (
    experts_of,
    flatten_gguf_experts,
    layers_of_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.granite import scaled_attention_of, with_multipliers
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.rope import read_rope, rope_settings

PERIOD = 4  # of whose layers the first one has no window
PATTERN = "{arch}.attention.rope_pattern"
SHARED = "{arch}.expert_shared_feed_forward_length"


def program(file: ModelFile) -> ModelConfig:
    """Read a file of dense layers, or a GGUF file of either kind."""
    has_experts = file.is_gguf and file.has(Role.ROUTER)
    return program_of(file, "granite_swa", own_experts(file) if has_experts else gated_of(file))


def own_experts(file: ModelFile) -> Experts:
    """Return experts, perhaps beside a shared one."""
    check_activation(file)
    key = SHARED if file.is_gguf else "shared_intermediate_size"
    size = file.integer(key, default=0, least=0)
    names = {"n": "num_local_experts", "size": "intermediate_size"}
    experts = experts_of(file, "top_softmax", False, **names)
    return replace(experts, shared_size=size)  # a GGUF file's gate and up are one tensor


def program_of(file: ModelFile, name: str, ffn: Gated | Experts) -> ModelConfig:
    """Return the program with this FFN in all layers."""
    attention = replace(scaled_attention_of(file), sinks=True)
    n_layers = n_layers_of(file)
    windows = windows_of(file, window_of(file, always=True), by_turns(n_layers, PERIOD, last=False))
    thetas = thetas_of(file, n_layers)
    known = sorted({theta for theta in thetas if theta != 0}, key=lambda theta: theta or 0)
    layers = [
        Layer(
            replace(attention, window=window, rope=known.index(theta) if theta != 0 else None), ffn
        )
        for theta, window in zip(thetas, windows, strict=True)
    ]
    ropes = ropes_of(file, attention.head_dim, known)
    return with_multipliers(model_of(file, name, layers, ropes=ropes), file)


def thetas_of(file: ModelFile, n_layers: int) -> list[float | None]:
    """Return each layer's theta: 0 if it has no positions, None for the file's own."""
    key = PATTERN if file.is_gguf else "layer_rope_theta"
    listed = file.raw(key)
    if listed is None:
        return [None] * n_layers
    numbers = (bool,) if file.is_gguf else (int, float)
    if (
        not isinstance(listed, list)
        or len(listed) != n_layers
        or not all(type(value) in numbers and value >= 0 for value in listed)
    ):
        raise file.fail(
            key, f"{n_layers} times {'true or false' if file.is_gguf else 'a theta, or 0'}"
        )
    if file.is_gguf:
        return [None if value else 0 for value in listed]
    return [float(value) for value in listed]


def ropes_of(
    file: ModelFile, head_dim: int, thetas: Sequence[float | None]
) -> tuple[tuple[Rope, ...], int]:
    """Return the angles of each theta, None being the file's own, and the context they allow."""
    rope, context = rope_of(file, head_dim)
    if file.is_gguf or None in thetas or not thetas:
        return (rope,), context
    settings = dict(rope_settings(file).values)
    values = {"max_position_embeddings": file.meant("max_position_embeddings")}
    own = [
        Fields(values | {"rope_parameters": settings | {"rope_theta": theta}}, file.source)
        for theta in thetas
    ]
    return tuple(read_rope(fields, head_dim)[0] for fields in own), context


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Flatten experts, and split gate and up of the shared one."""
    flatten_gguf_experts(tensors, config)
    for number, experts in layers_of_experts(config):
        gate, up = (tensors.usual(role, number) for role in (Role.SHARED_GATE, Role.SHARED_UP))
        if gate not in tensors.out:
            tensors.split_rows(up, {gate: experts.shared_size, up: experts.shared_size})


FAMILY = Family(
    "granite_swa",
    program,
    "granite_swa",
    gguf_tensors=gguf_tensors,
    gguf_interleaved_rope=True,
)
