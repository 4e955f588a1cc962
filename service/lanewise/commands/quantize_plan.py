"""What `lanewise quantize` makes of each tensor: its type, its name and the order of its rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanewise.loading.architectures import (
    FAMILIES,
    GGUF,
    HF,
    TENSOR_NAMES,
    is_vector,
)
from lanewise.loading.checkpoint import Checkpoint, ModelFileError, Role, Tensor, TensorType
from lanewise.settings import QUANTIZED_FORMATS
from lanewise_quantizer.gguf_blocks import LAYOUTS
from lanewise_quantizer.storage import FLOAT_BYTES, row_bytes, row_multiple

HEADS = (Role.TOKEN_EMBEDDING, Role.OUTPUT)
# What rows become that blocks of 256 inputs do not divide; the rest is F16.
SMALLER = {
    "q2_k": "iq4_nl",
    "q3_k": "iq4_nl",
    "iq4_xs": "iq4_nl",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}
EIGHT_BITS = ("q8_0", "a8_g32", "a8_g128", "w8a8")


@dataclass(frozen=True)
class Target:
    """One tensor of the file to be written."""

    source: Tensor
    name: str
    type: str  # such as q4_0
    order: npt.NDArray[np.intp] | None  # rows of the source, or entries of a vector; None = as is
    asked: str  # the type that was asked for
    alternates: int = 0  # RoPE heads whose halves alternate in the result; 0 = one after the other

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return row_bytes(self.type, self.source.cols)

    @property
    def n_bytes(self) -> int:
        """Bytes of all rows."""
        return self.source.rows * self.row_bytes

    @property
    def is_matrix(self) -> bool:
        """Whether it is stored with two dimensions."""
        return not is_vector(self.source.role)


def plan(checkpoint: Checkpoint, kind: str, head: str | None, to_gguf: bool) -> list[Target]:
    """Return the tensors of the result, in the order of the forward step."""
    head = head or default_head(kind)
    if to_gguf:
        for option, name in (("--format", kind), ("--head", head)):
            if name not in LAYOUTS and name not in FLOAT_BYTES:
                accepted = [name for name in QUANTIZED_FORMATS if name in LAYOUTS]
                raise ModelFileError(
                    f"{option}: {name} is no type of GGUF files; accepted with --gguf:"
                    f" {', '.join(accepted)}"
                )
    return [target_of(checkpoint, tensor, kind, head, to_gguf) for tensor in checkpoint.tensors]


def default_head(kind: str) -> str:
    """Return the type of embedding and head that goes with a format: six bits, or its eight."""
    return "q8_0" if kind in EIGHT_BITS else kind if kind in FLOAT_BYTES else "q6_k"


def target_of(
    checkpoint: Checkpoint, tensor: Tensor, kind: str, head: str, to_gguf: bool
) -> Target:
    """Return what becomes of one tensor."""
    if tensor.packing is not None:
        raise ModelFileError(
            f"{checkpoint.path}: packed weights cannot be quantized; give the model that was packed"
        )
    asked = head if tensor.role in HEADS else kind
    if is_vector(tensor.role):
        asked = "f32"
    column = GGUF if to_gguf else HF
    name = TENSOR_NAMES[tensor.role][column].format(tensor.layer)
    order = row_order(checkpoint, tensor, to_gguf)
    family = next(f for f in FAMILIES if f.name == checkpoint.config.architecture)
    heads = rope_heads(checkpoint, tensor) if to_gguf and family.gguf_interleaved_rope else 0
    return Target(tensor, name, fitting(asked, tensor.cols), order, asked, heads)


def fitting(kind: str, cols: int) -> str:
    """Return the type, or the one that takes its place, that rows of ``cols`` can have."""
    while cols % row_multiple(kind):
        kind = SMALLER.get(kind, "f16")
    return kind


def row_order(checkpoint: Checkpoint, tensor: Tensor, to_gguf: bool) -> npt.NDArray[np.intp] | None:
    """Return the rows of the source in the order they get, if RoPE heads are to be reordered.

    Hugging Face files have the halves of a head one after the other, GGUF's llama alternates them.
    """
    config = checkpoint.config
    heads = rope_heads(checkpoint, tensor)
    family = next(f for f in FAMILIES if f.name == config.architecture)
    alternates = tensor.rope_heads > 0
    if not heads or alternates == (to_gguf and family.gguf_interleaved_rope):
        return None
    half = config.head_dim // 2
    shape = (heads, half, 2) if alternates else (heads, 2, half)
    rows = np.arange(heads * config.head_dim).reshape(shape)
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(-1))


def rope_heads(checkpoint: Checkpoint, tensor: Tensor) -> int:
    """Return how many RoPE heads a tensor has; 0 if it is none of Q's or K's."""
    config = checkpoint.config
    return {
        Role.ATTN_Q: config.n_heads,
        Role.ATTN_Q_BIAS: config.n_heads,
        Role.ATTN_K: config.n_kv_heads,
        Role.ATTN_K_BIAS: config.n_kv_heads,
    }.get(tensor.role, 0)


def half_split_rows(target: Target) -> npt.NDArray[np.intp] | None:
    """Return the rows of a half-split matrix in the order of the result, if that is another."""
    if not target.alternates:
        return None
    rows = np.arange(target.source.rows).reshape(target.alternates, 2, -1)
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(-1))


def replaced(targets: Iterable[Target]) -> list[str]:
    """Return a line for each type that some tensors could not have."""
    groups: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for target in targets:
        if target.type != target.asked:
            groups[target.asked, target.type, target.source.cols].append(target.name)
    return [
        f"{_listed(names)}: {made}, because rows of {cols} inputs are no multiple of"
        f" {row_multiple(asked)}, which {asked} needs"
        for (asked, made, cols), names in groups.items()
    ]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"


def tensor_type(name: str) -> TensorType:
    """Return the storage type of a name such as q4_0."""
    return TensorType[name.upper()]
