"""Changes tensors of towers: convolutions to matrices, sizes to whole groups, orders of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from operator import gt
from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.formats import VECTOR_TYPES, TensorType, row_bytes
from lanewise.loading.files.rearranging import Floats, Rearranged, shown, to_f32


class TowerTensors(Rearranged):
    """The tensors of a tower on their way to the usual names."""

    def as_matrix(self, name: str) -> None:
        """Reshape a convolution's weights to a row for each output: the same bytes."""
        if name in self.out and len(self.out[name].shape) > 2:
            source = self.out[name]
            self.out[name] = replace(source, shape=(source.shape[0], prod(source.shape[1:])))

    def add_up(self, name: str, *others: str, axis: int | None = None) -> None:
        """Add other tensors of the same shape to one, or the parts along an axis; in float32."""
        parts = [self.out.pop(each) for each in (name, *others) if each in self.out]
        if not parts:
            return
        first = parts[0]
        shapes = {(part.shape, part.type) for part in parts}
        is_whole = len(parts) == 1 + len(others) and len(shapes) == 1
        has_axis = axis is None or len(first.shape) > axis
        if not is_whole or not has_axis or first.type not in VECTOR_TYPES:
            self.out[name] = first  # the binding reports the shape or the type
            return
        kind = TensorType(first.type)
        shape = tuple(n for at, n in enumerate(first.shape) if at != axis)

        def make() -> memoryview:
            arrays = [to_f32(part.view(), kind).reshape(part.shape) for part in parts]
            made = sum(arrays[1:], arrays[0]) if axis is None else arrays[0].sum(axis)
            for part in parts:
                part.release()
            return np.ascontiguousarray(made, "<f4").reshape(-1).view(np.uint8).data.cast("B")

        floats = replace(first, type=TensorType.F32)
        self.out[name] = self._made(floats, shape, 4 * prod(shape), make)

    def gather(self, names: Sequence[str], to: str) -> None:
        """Make a float32 vector of one-value tensors; infinity becomes the largest value."""
        parts = [self.out.pop(name) for name in names if name in self.out]
        kinds = [TensorType(part.type) for part in parts if part.type in VECTOR_TYPES]
        are_single = all(prod(part.shape) == 1 for part in parts)
        if not parts or len(kinds) < len(names) or not are_single:
            return  # the binding reports that the vector is missing

        def make() -> memoryview:
            values = [to_f32(part.view(), kind) for part, kind in zip(parts, kinds, strict=True)]
            most = np.finfo(np.float32).max
            made: Floats = np.clip(np.concatenate(values), -most, most)
            return made.view(np.uint8).data.cast("B")

        floats = replace(parts[0], type=TensorType.F32)
        self.out[to] = self._made(floats, (len(parts),), 4 * len(parts), make)

    def turn_columns(self, name: str, inner: int) -> None:
        """Put columns that are [outer][inner] of a float matrix in the order [inner][outer]."""
        source = self.out.get(name)
        if source is None or len(source.shape) != 2 or source.shape[1] % inner:
            return
        if source.type not in VECTOR_TYPES:
            accepted = ", ".join(kind.name for kind in VECTOR_TYPES)
            raise ModelFileError(
                f"{source.where}: tensor {name!r} is {shown(source)}, whose columns are in another"
                f" order here; accepted: {accepted}"
            )
        rows, width = source.shape[0], row_bytes(TensorType(source.type), 1)

        def make() -> memoryview:
            values = np.frombuffer(source.view(), f"V{width}").reshape(rows, -1, inner)
            made: npt.NDArray[Any] = np.ascontiguousarray(values.swapaxes(1, 2))
            source.release()
            return made.view(np.uint8).data.cast("B")

        self.out[name] = self._made(source, source.shape, source.n_bytes, make)

    def pad(self, name: str, *wanted: int) -> None:
        """Append zeros to the rows of a matrix, and rows or values of zeros, up to a shape."""
        source = self.out.get(name)
        if source is None or source.shape == wanted or len(source.shape) != len(wanted):
            return
        if not isinstance(source.type, TensorType) or any(map(gt, source.shape, wanted)):
            return  # the binding reports the type or the shape
        kind, (rows, cols) = source.type, ((1, *source.shape)[-2:])
        old, size = row_bytes(kind, cols), row_bytes(kind, wanted[-1])

        def make() -> memoryview:
            made = np.zeros((prod(wanted[:-1]), size), np.uint8)
            made[:rows, :old] = np.frombuffer(source.view(), np.uint8).reshape(rows, old)
            source.release()
            return made.reshape(-1).data.cast("B")

        self.out[name] = self._made(source, wanted, prod(wanted[:-1]) * size, make)
