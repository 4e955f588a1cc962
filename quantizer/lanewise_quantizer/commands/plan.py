"""What `lanewise quantize` makes of each tensor: its type, its name and the order of its rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Role, Tensor
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.names import GGUF, HF, ORDERS, TENSOR_NAMES, is_vector
from lanewise.loading.families.table import family_named
from lanewise.loading.programs.turned_rows import whole_heads
from lanewise.loading.quantized.quantized_sources import original_columns
from lanewise.settings import QUANTIZED_FORMATS
from lanewise_quantizer.gguf_blocks import LAYOUTS
from lanewise_quantizer.storage import FLOAT_BYTES, row_bytes, row_multiple

HEADS = (Role.TOKEN_EMBEDDING, Role.OUTPUT)
KEPT = (
    *(Role.ROUTER, Role.STATE_DECAY, Role.STATE_BETA, Role.INDEX_WEIGHTS),
    *(Role.STATE_DECAY_DOWN, Role.STATE_GATE_DOWN),
    *(Role.POSITION_EMBEDDING, Role.TOKEN_TYPE_EMBEDDING),
    *(Role.HYPER_ATTN, Role.HYPER_FFN, Role.HYPER_HEAD),
)
# What rows become that blocks of 256 inputs do not divide: as many bits or nearly, and as good; six
# bits are asked for where nothing shall be lost. What 32 does not divide either is F16.
SMALLER = {
    "q2_k": "cb2",
    "q3_k": "cb3",
    "iq4_xs": "cb4",
    "q4_k": "iq4_nl",
    "q5_k": "q5_0",
    "q6_k": "q8_0",
}
# GGUF has no such type of two or three bits; of four, this one loses least by far.
SMALLER_IN_GGUF = SMALLER | {"q2_k": "iq4_nl", "q3_k": "iq4_nl", "iq4_xs": "iq4_nl"}
WIDE = 4096  # inputs of a row that all types can have
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
    columns: npt.NDArray[np.intp] | None = None  # of the source, in the order of its inputs

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


Kinds = Mapping[tuple[Role, int], str]  # the type of each matrix


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
    kinds = {}
    for tensor in checkpoint.tensors:
        if not is_written(checkpoint, tensor, to_gguf):
            continue
        chosen = head if tensor.role in HEADS else kind
        kinds[tensor.role, tensor.layer] = own_type(tensor) if is_kept(tensor) else chosen
    return plan_as(checkpoint, kinds, to_gguf)


def rewrites(checkpoint: Checkpoint, to_gguf: bool) -> bool:
    """Return whether the result is a GGUF file of a GGUF file.

    It has new matrices in the place of that file's; all else is copied.
    """
    return to_gguf and checkpoint.path.is_file()


def is_written(checkpoint: Checkpoint, tensor: Tensor, to_gguf: bool) -> bool:
    """Return whether a tensor of the result is made of this one."""
    if rewrites(checkpoint, to_gguf):
        return (tensor.role, tensor.layer) in checkpoint.places
    return tensor.role not in ORDERS


def not_written(checkpoint: Checkpoint, to_gguf: bool) -> str | None:
    """Return a sentence about matrices that could be quantized and are copied, or None."""
    could = [t for t in checkpoint.tensors if not is_vector(t.role) and not is_kept(t)]
    left = [t for t in could if not is_written(checkpoint, t, to_gguf)]
    if not left:
        return None
    return (
        f"{len(left)} of {len(could)} matrices keep their types, such as {left[0].name}: the source"
        " has them in another order, or with others in one tensor; accepted without --gguf: any"
    )


def of_one_type(checkpoint: Checkpoint, kinds: Kinds) -> Kinds:
    """Return kinds with the largest of all matrices that a GGUF file has in one tensor.

    Where one of these stays as it is, all do.
    """
    together: dict[str, list[Tensor]] = defaultdict(list)
    for tensor in checkpoint.tensors:
        if (place := checkpoint.places.get((tensor.role, tensor.layer))) is not None:
            together[place[0]].append(tensor)
    found = dict(kinds)
    for parts in together.values():
        keys = [(part.role, part.layer) for part in parts]
        kept = [own_type(part) for part in parts if is_kept(part)]
        largest = kept[0] if kept else max((kinds[key] for key in keys), key=bits_of)
        found |= dict.fromkeys(keys, largest)
    return found


def is_kept(tensor: Tensor) -> bool:
    """Return whether a matrix stays as it is.

    A router, which few bits would have choose others; the small ones of a state, whose errors grow
    with every token; rows that are added to embeddings, which the library takes as floats only.
    """
    return tensor.role in KEPT


def own_type(tensor: Tensor) -> str:
    """Return the type that a tensor of the source has, as :class:`Target` names it."""
    return TensorType(tensor.type).name.lower()


def plan_as(checkpoint: Checkpoint, kinds: Kinds, to_gguf: bool) -> list[Target]:
    """Return the tensors of the result for given types of its matrices."""
    columns = original_columns(checkpoint.tensors)
    if rewrites(checkpoint, to_gguf):
        kinds = of_one_type(checkpoint, kinds)
    return [
        replace(
            target_of(checkpoint, tensor, kinds, to_gguf),
            columns=columns.get((tensor.role, tensor.layer)),
        )
        for tensor in checkpoint.tensors
        if is_written(checkpoint, tensor, to_gguf)
    ]


def default_head(kind: str) -> str:
    """Return the type of embedding and head that goes with a format: six bits, or its eight."""
    return "q8_0" if kind in EIGHT_BITS else kind if kind in FLOAT_BYTES else "q6_k"


def kinds_of(targets: Iterable[Target]) -> Kinds:
    """Return the types that :func:`plan_as` makes the same targets of."""
    return {(t.source.role, t.source.layer): t.type for t in targets if t.is_matrix}


def target_of(checkpoint: Checkpoint, tensor: Tensor, kinds: Kinds, to_gguf: bool) -> Target:
    """Return what becomes of one tensor."""
    asked = "f32" if is_vector(tensor.role) else kinds[tensor.role, tensor.layer]
    column = GGUF if to_gguf else HF
    name = TENSOR_NAMES[tensor.role][column].format(tensor.layer)
    heads = whole_heads(checkpoint.config, tensor.role, tensor.layer)
    alternates = to_gguf and alternates_in_gguf(checkpoint)
    order = None
    if heads and (tensor.rope_heads > 0) != alternates:
        size = tensor.cols if is_vector(tensor.role) else tensor.rows
        order = swapped_halves(size, heads, alternates=tensor.rope_heads > 0)
    kind = fitting(asked, tensor.cols, to_gguf)
    return Target(tensor, name, kind, order, asked, heads if alternates else 0)


def fitting(kind: str, cols: int, to_gguf: bool) -> str:
    """Return the type, or the one that takes its place, that rows of ``cols`` can have."""
    smaller = SMALLER_IN_GGUF if to_gguf else SMALLER
    while cols % row_multiple(kind):
        kind = smaller.get(kind, "f16")
    return kind


def alternates_in_gguf(checkpoint: Checkpoint) -> bool:
    """Return whether GGUF has the halves of RoPE heads alternate, as no other files do."""
    return family_named(checkpoint.config.architecture).gguf_interleaved_rope


def half_split_rows(target: Target) -> npt.NDArray[np.intp] | None:
    """Return the rows of a half-split matrix in the order of the result, if that is another."""
    if not target.alternates:
        return None
    return swapped_halves(target.source.rows, target.alternates, alternates=False)


def swapped_halves(rows: int, heads: int, alternates: bool) -> npt.NDArray[np.intp]:
    """Return rows whose heads' halves alternate one half after the other, or the other way."""
    shape = (heads, -1, 2) if alternates else (heads, 2, -1)
    order = np.arange(rows).reshape(shape).swapaxes(1, 2)
    return np.ascontiguousarray(order.reshape(-1))


def replaced(targets: Iterable[Target]) -> list[str]:
    """Return a sentence for each type that some tensors could not have."""
    groups: dict[tuple[str, str], list[Target]] = defaultdict(list)
    n_matrices = 0
    for target in targets:
        n_matrices += target.is_matrix
        if target.type != target.asked:
            groups[target.asked, target.type].append(target)
    return [_replacement(asked, made, group, n_matrices) for (asked, made), group in groups.items()]


def _replacement(asked: str, made: str, group: Sequence[Target], n_matrices: int) -> str:
    widths = ", ".join(str(cols) for cols in sorted({target.source.cols for target in group}))
    which = group[0].name if len(group) == 1 else f"{len(group)} of {n_matrices} matrices"
    got = 8 * sum(t.n_bytes for t in group) / sum(t.source.rows * t.source.cols for t in group)
    return (
        f"{which}: {made} instead of {asked}, {got:.3g} bits per weight instead of"
        f" {bits_of(asked):.3g}, because rows of {widths} inputs are no multiple of"
        f" {row_multiple(asked)}"
    )


def bits_of(kind: str) -> float:
    """Return the bits of a weight in rows that a type fits well."""
    return 8 * row_bytes(kind, WIDE) / WIDE


def bytes_asked(target: Target) -> int:
    """Return the bytes that a tensor would take in the type that was asked for."""
    if target.type == target.asked:
        return target.n_bytes
    return round(target.source.rows * target.source.cols * bits_of(target.asked) / 8)


def tensor_type(name: str) -> TensorType:
    """Return the storage type of a name such as q4_0."""
    return TensorType[name.upper()]
