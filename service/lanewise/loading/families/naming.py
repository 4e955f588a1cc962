"""Renames and splits tensors for families whose files differ from the usual names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import VECTOR_TYPES, TensorType
from lanewise.loading.base.names import HF, TENSOR_NAMES
from lanewise.loading.base.program import Attention, ModelConfig
from lanewise.loading.base.sources import Sources
from lanewise.loading.files.rearranging import Rearranged, Rows, to_f32

QKV = (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V)
GATE_UP = (Role.FFN_GATE, Role.FFN_UP)
# Gates of attention by kind of file, of families that name them so.
ATTN_GATES = ("blk.{}.attn_gate.weight", "model.layers.{}.self_attn.g_proj.weight")


def usual(role: Role, layer: int = 0, column: int = HF) -> str:
    """Return the usual name of a tensor; ``column`` is HF or GGUF."""
    return TENSOR_NAMES[role][column].format(layer)


def bias_of(role: Role) -> Role:
    """Return the role of a weight's bias."""
    return Role[f"{role.name}_BIAS"]


def give_roles(tensors: Rearranged, name: str, role: Role, number: int = 0) -> None:
    """Rename a weight, and its bias if the role has one."""
    tensors.rename(f"{name}.weight", tensors.usual(role, number))
    if f"{role.name}_BIAS" in Role.__members__:
        tensors.rename(f"{name}.bias", tensors.usual(bias_of(role), number))


def rename_attention_gates(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename ATTN_GATES of all layers."""
    for number in range(config.n_layers):
        name = ATTN_GATES[tensors.column].format(number)
        tensors.rename(name, tensors.usual(Role.ATTN_GATE, number))


def give_layer_roles(
    tensors: Rearranged,
    config: ModelConfig,
    of_layer: Mapping[str, Role],
    folder: str = "model.layers.{}.",
) -> None:
    """Rename the tensors of each layer in ``folder``, in the order of the table."""
    for number in range(config.n_layers):
        for name, role in of_layer.items():
            give_roles(tensors, f"{folder.format(number)}{name}", role, number)


def split_gate_and_up(
    tensors: Rearranged, config: ModelConfig, fused: str = "model.layers.{}.mlp.gate_up_proj"
) -> None:
    """Split gate and up of each layer; GGUF files with fused ones name them up."""
    name = fused if tensors.column == HF else "blk.{}.ffn_up"
    for number in range(config.n_layers):
        if tensors.usual(Role.FFN_GATE, number) not in tensors.out:
            size = config.ffn_size(number)
            split_roles(tensors, name.format(number), GATE_UP, size, number)


def split_roles(
    tensors: Rearranged,
    name: str,
    roles: Sequence[Role],
    rows: int | Sequence[int],
    number: int,
) -> None:
    """Cut a fused weight, and its bias, into the weights of ``roles``, of ``rows`` rows each."""
    sizes = [rows] * len(roles) if isinstance(rows, int) else rows
    for end, parts in (("weight", roles), ("bias", map(bias_of, roles))):
        names = (tensors.usual(part, number) for part in parts)
        tensors.split_rows(f"{name}.{end}", dict(zip(names, sizes, strict=True)))


def qkv_rows(attention: Attention) -> list[int]:
    """Return the numbers of rows of Q, K and V."""
    keys = [n * attention.head_dim for n in (attention.n_heads, attention.n_kv_heads)]
    return [*keys, attention.n_kv_heads * attention.output_dim]


def split_heads(tensors: Rearranged, name: str, attention: Attention, number: int) -> None:
    """Split a fused weight, and its bias, whose rows are grouped by KV head.

    In a group the queries come first, then the key and the value.
    """
    n_heads, n_kv, dim = attention.n_heads, attention.n_kv_heads, attention.head_dim

    def parts_of(roles: Iterable[Role]) -> Callable[[Rows], Mapping[str, Rows]]:
        def parts(rows: Rows) -> Mapping[str, Rows]:
            groups = rows.reshape(n_kv, n_heads // n_kv + 2, dim)
            each = (groups[:, :-2], groups[:, -2], groups[:, -1])
            names = (tensors.usual(role, number) for role in roles)
            return {name: one.reshape(-1) for name, one in zip(names, each, strict=True)}

        return parts

    for end, roles in (("weight", QKV), ("bias", tuple(map(bias_of, QKV)))):
        tensors.take_rows(f"{name}.{end}", sum(qkv_rows(attention)), parts_of(roles))


def one_number(sources: Sources, name: str, where: str) -> float:
    """Return the value of a one-value tensor; ``where`` is the file that should have it."""
    tensor = sources.get(name)
    if tensor is None:
        raise ModelFileError(f"{where}: missing tensor {name!r}")
    if tensor.type not in VECTOR_TYPES or math.prod(tensor.shape) != 1:
        raise ModelFileError(f"{tensor.where}: tensor {name!r} is not one number")
    return float(to_f32(tensor.view(), TensorType(tensor.type))[0])


def add_one_to_norms(tensors: Rearranged, config: ModelConfig, roles: Sequence[Role]) -> None:
    """Add the 1 that files leave out of norms: to the output norm and every layer's."""
    tensors.add_one(tensors.usual(Role.OUTPUT_NORM))
    for number in range(config.n_layers):
        for role in roles:
            tensors.add_one(tensors.usual(role, number))


def take_heads_apart(tensors: Rearranged, config: ModelConfig) -> None:
    """Split Q, K and V of each layer if a GGUF file has them fused.

    Rows of Q beyond the queries are the gate.
    """
    for number, layer in enumerate(config.layers):
        for name in (f"blk.{number}.attn_qkv.weight", f"blk.{number}.attn_qkv.bias"):
            fused = tensors.out.get(name)
            if fused is None or layer.attention is None:
                continue
            rows = qkv_rows(layer.attention)
            if fused.shape:
                rows[0] = max(rows[0], fused.shape[0] - sum(rows[1:]))
            roles = QKV if name.endswith("weight") else map(bias_of, QKV)
            names = (tensors.usual(role, number) for role in roles)
            tensors.split_rows(name, dict(zip(names, rows, strict=True)))


def gguf_post_attention_norm(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename the norm before the FFN, which some files name after the attention before it."""
    for number in range(config.n_layers):
        name = f"blk.{number}.post_attention_norm.weight"
        tensors.rename(name, tensors.usual(Role.FFN_NORM, number))
