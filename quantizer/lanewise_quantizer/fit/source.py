"""Reads the tensors of a checkpoint, of whatever type, as float32; Q and K in half-split order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Role, Tensor
from lanewise.loading.base.program import Experts
from lanewise.loading.quantized.quantized_sources import original_columns
from lanewise_quantizer.storage import decode_rows

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.integer]

SLAB_WEIGHTS = 1 << 24


@dataclass(frozen=True)
class Multiplied(Tensor):
    """A tensor with factors, which are applied to its values as these are read; its bytes stay."""

    by_row: Floats | None = None  # [rows] in the order they are stored in
    by_column: Floats | None = None  # [cols], in the order that inputs have in the end


class Source:
    """The weights of a checkpoint by role and layer."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = checkpoint.config
        self.tensors = {(tensor.role, tensor.layer): tensor for tensor in checkpoint.tensors}
        self._columns = original_columns(checkpoint.tensors)

    def has(self, role: Role, layer: int = 0) -> bool:
        """Return whether the model has this tensor."""
        return (role, layer) in self.tensors

    def __call__(self, role: Role, layer: int = 0) -> Floats:
        """Return a matrix [outputs, inputs] or a vector [size]; NaN and infinity are an error."""
        tensor = self.tensors[role, layer]
        values = self._read(tensor, range(tensor.rows))
        if tensor.rope_heads:
            flat = values if tensor.rows > 1 else values.T
            halves = flat.reshape(tensor.rope_heads, -1, 2, flat.shape[1])
            values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        return values if tensor.rows > 1 else values[0]

    def rows(self, role: Role, numbers: Numbers, layer: int = 0) -> Floats:
        """Return rows [..., cols] in the order they are stored in, without reading the others."""
        found, places = np.unique(numbers, return_inverse=True)
        values = self._read(self.tensors[role, layer], found)
        looked_up: Floats = values[places.reshape(numbers.shape)]
        return looked_up

    def n_experts(self, layer: int) -> int:
        """Return how many experts a layer chooses from; 0 if it has none."""
        ffn = self.config.layers[layer].ffn
        return ffn.n if isinstance(ffn, Experts) else 0

    def expert(self, role: Role, layer: int, number: int) -> Floats:
        """Return one expert's part [outputs, inputs] of a matrix of all experts."""
        tensor = self.tensors[role, layer]
        rows = tensor.rows // self.n_experts(layer)
        return self._read(tensor, range(number * rows, (number + 1) * rows))

    def slabs(self, role: Role, layer: int = 0) -> Iterator[tuple[int, Floats]]:
        """Return some rows of a matrix after the other, each time with the first one's number.

        An embedding or a head is a fifth of a model, and too large to be held as float32.
        """
        tensor = self.tensors[role, layer]
        step = slab_rows(tensor.cols)
        for start in range(0, tensor.rows, step):
            yield start, self._read(tensor, range(start, min(start + step, tensor.rows)))

    def _read(self, tensor: Tensor, numbers: range | Numbers) -> Floats:
        """Some rows in the order they are stored in."""
        values = decode(tensor, numbers)
        if (tensor.role, tensor.layer) in self._columns:
            values = values[:, self._columns[tensor.role, tensor.layer]]
        values = multiplied(tensor, numbers, values)
        if not np.isfinite(values).all():
            row = numbers[int(np.nonzero(~np.isfinite(values).all(axis=1))[0][0])]
            raise ModelFileError(f"tensor {tensor.name!r}: row {row} holds NaN or infinity")
        tensor.release()  # a mapped file's pages; where values are still in it they come back
        return values


def slab_rows(cols: int) -> int:
    """Return how many rows of so many inputs are worked on at a time."""
    return max(8, SLAB_WEIGHTS // cols // 8 * 8)


def multiplied(tensor: Tensor, numbers: Sequence[int] | Numbers, values: Floats) -> Floats:
    """The values [rows, cols] of some rows, times what a tensor is multiplied by, if anything."""
    if not isinstance(tensor, Multiplied):
        return values
    if tensor.by_row is not None:
        values = values * tensor.by_row[np.asarray(numbers)][:, None]
    return values if tensor.by_column is None else values * tensor.by_column


def decode(tensor: Tensor, numbers: range | Numbers) -> Floats:
    """The values [rows, cols] of some rows of a tensor as stored."""
    which = slice(numbers.start, numbers.stop) if isinstance(numbers, range) else numbers
    rows = np.frombuffer(tensor.data, np.uint8).reshape(tensor.rows, -1)[which]
    table = None if tensor.table is None else np.frombuffer(tensor.table, np.int8)
    try:
        return decode_rows(tensor.type.name.lower(), rows, tensor.cols, table)
    except ValueError as error:  # scales that are not finite
        where = f"from row {numbers[0]} on"
        raise ModelFileError(f"tensor {tensor.name!r}: {where}: {error}") from None
