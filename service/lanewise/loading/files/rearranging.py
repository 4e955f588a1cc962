"""Changes tensors that files store fused, split or reordered to the usual tensors and names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.blocks import GROUP, LAYOUTS, q8_rows, weights_of
from lanewise.loading.base.checkpoint import Converted, LastConverted, ModelFileError, Role
from lanewise.loading.base.formats import VECTOR_TYPES, TensorType, row_bytes
from lanewise.loading.base.names import HF, LAYERS, TENSOR_NAMES
from lanewise.loading.base.sources import Sources, SourceTensor

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.intp]  # numbers of rows
SLAB_BYTES = 1 << 24  # bytes of rows that are changed at a time
Select = Callable[[Bytes], Bytes]  # from rows [experts, rows, bytes] to the rows of one part


def mxfp4_rows(codes: memoryview, exponents: memoryview) -> memoryview:
    """Return GGUF's MXFP4 blocks of codes, 16 bytes for each group, and a byte of exponent for it.

    A byte of codes has two neighbouring inputs; in GGUF's blocks it has inputs j and j + 16.
    """
    pairs = np.frombuffer(codes, np.uint8).reshape(-1, 16)
    made = np.empty((len(pairs), 17), np.uint8)
    made[:, 0] = np.frombuffer(exponents, np.uint8)
    low, high = pairs & np.uint8(15), pairs >> np.uint8(4)
    made[:, 1::2] = low[:, :8] | low[:, 8:] << np.uint8(4)
    made[:, 2::2] = high[:, :8] | high[:, 8:] << np.uint8(4)
    return made.reshape(-1).data.cast("B")


def to_f32(data: memoryview, kind: TensorType) -> npt.NDArray[np.float32]:
    """Return values in one of VECTOR_TYPES as float32."""
    if kind == TensorType.BF16:
        return (np.frombuffer(data, "<u2").astype("<u4") << np.uint32(16)).view("<f4")
    return np.frombuffer(data, "<f2" if kind == TensorType.F16 else "<f4").astype("<f4")


def from_floats(values: npt.NDArray[np.float64], kind: TensorType) -> Bytes:
    """Return values as bytes of one of VECTOR_TYPES, rounded to nearest, ties to even.

    To bfloat16 in two roundings: first to float32, which has 16 more bits.
    """
    if kind != TensorType.BF16:
        with np.errstate(over="ignore"):  # infinity, which the loader refuses
            return values.astype("<f2" if kind == TensorType.F16 else "<f4").view(np.uint8)
    bits = values.astype("<f4").view("<u4")
    bits += np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (bits >> np.uint32(16)).astype("<u2").view(np.uint8)


def without_prefixes(sources: Sources, prefixes: Sequence[str]) -> dict[str, SourceTensor]:
    """Return the tensors without the name prefixes that they have in models with a head."""
    found = {}
    for name, tensor in sources.items():
        for prefix in prefixes:
            name = name.removeprefix(prefix)
        found[name] = tensor
    return found


class Rearranged:
    """The tensors of a file on their way to the usual names.

    Tensors whose bytes change are converted when they are asked for. A method skips a tensor that
    is missing; the binding then reports its usual name as missing. ``column`` is the kind of file,
    HF or GGUF, each of which has its own usual names.
    """

    def __init__(self, sources: Sources, column: int = HF) -> None:
        self.out: dict[str, SourceTensor] = dict(sources)
        self.column = column
        self._last = LastConverted()

    def usual(self, role: Role, layer: int = 0) -> str:
        """Return the usual name of a tensor."""
        return TENSOR_NAMES[role][self.column].format(layer)

    def rename(self, old: str, new: str) -> None:
        """Give a tensor its usual name."""
        if old in self.out:
            self.out[new] = self.out.pop(old)

    def remove_prefixes(self, *prefixes: str) -> None:
        """Remove prefixes, in this order, from the names that begin with them."""
        self.out = without_prefixes(self.out, prefixes)

    def drop(self, *names: str) -> None:
        """Leave out tensors that no computation here uses."""
        for name in names:
            self.out.pop(name, None)

    def drop_rows(self, name: str, n: int) -> None:
        """Leave out the first ``n`` rows of a matrix."""
        if name in self.out:
            rows = self.out[name].shape[0] - n
            self.split_rows(name, {"": n, name: rows})
            del self.out[""]

    def drop_layers_from(self, number: int) -> None:
        """Leave out the tensors of layers from ``number`` on."""
        prefix = LAYERS[self.column]
        for name in list(self.out):
            layer = name.removeprefix(prefix).partition(".")[0]
            if name.startswith(prefix) and layer.isdecimal() and int(layer) >= number:
                del self.out[name]

    def split_rows(self, name: str, parts: Mapping[str, int]) -> None:
        """Cut a matrix or vector into parts of the given numbers of rows, without copying."""
        source = self.out.pop(name, None)
        if source is None:
            return
        self._check(source, name, rows=sum(parts.values()))
        start, size = 0, source.n_bytes // source.shape[0]
        for part, rows in parts.items():
            data = self._slice(source, start * size, (start + rows) * size)
            shape = (rows, *source.shape[1:])
            self.out[part] = replace(source, shape=shape, data=data)
            start += rows

    def ravel(self, name: str, width: int | None = None) -> None:
        """Reshape a tensor to a vector, or to rows of ``width`` values: the same bytes."""
        if name in self.out:
            source = self.out[name]
            if width not in (None, *source.shape[-1:]):
                raise ModelFileError(
                    f"{source.where}: tensor {name!r} is {shown(source)}; rows of {width} values"
                    " are needed"
                )
            self.out[name] = replace(source, shape=(prod(source.shape),))

    def decode(self, name: str) -> None:
        """Make float32 of a matrix in blocks of integers."""
        source = self.out.get(name)
        kind = source.type if source is not None else None
        if source is None or not isinstance(kind, TensorType) or kind not in LAYOUTS:
            return

        def make() -> memoryview:
            rows = np.frombuffer(source.view(), np.uint8).reshape(source.shape[0], -1)
            return weights_of(kind, rows).reshape(-1).view(np.uint8).data.cast("B")

        floats = replace(source, type=TensorType.F32)
        self.out[name] = self._made(floats, source.shape, 4 * prod(source.shape), make)

    def take_rows(self, name: str, n: int, parts: Callable[[Rows], Mapping[str, Rows]]) -> None:
        """Make a matrix or vector of each part of ``n`` rows, from the given row numbers.

        ``parts`` gets the numbers of all rows, after the tensor's size was checked.
        """
        source = self.out.pop(name, None)
        if source is None:
            return
        self._check(source, name, rows=n)
        for part, rows in parts(np.arange(n)).items():

            def make(rows: Rows = rows) -> memoryview:
                made = np.frombuffer(source.view(), np.uint8).reshape(n, -1)[rows]
                source.release()
                return made.reshape(-1).data.cast("B")

            shape = (len(rows), *source.shape[1:])
            self.out[part] = self._made(source, shape, source.n_bytes // n * len(rows), make)

    def add_one(self, name: str) -> None:
        """Add 1 to the values of a float vector, which becomes float32."""
        self._change(name, lambda values: values + np.float32(1))

    def add_ones(self, name: str, n: int) -> None:
        """Add a float32 vector of ones, which files leave out."""
        like = next(iter(self.out.values()))
        ones: Floats = np.ones(n, np.float32)
        data = ones.view(np.uint8).data.cast("B")
        nothing = SourceTensor(like.where, (n,), TensorType.F32, data, lambda: None)
        self.out.setdefault(name, nothing)

    def exponentiate(self, name: str) -> None:
        """Change values x of a float vector to -exp(x) in float32, rounded once."""
        self._change(name, lambda values: -np.exp(values.astype("<f8")).astype("<f4"))

    def multiply_rows(self, name: str, by: float | npt.NDArray[np.float64]) -> None:
        """Multiply a matrix or vector by a number, or each of its rows by its own number.

        A matrix keeps its type, a vector becomes float32; values are rounded once.
        """
        source, numbers = self.out.get(name), np.asarray(by, np.float64)
        if source is None or not source.shape or (numbers == 1).all():
            return
        rows = source.shape[0]
        if numbers.shape not in ((), (rows,)):  # the binding will report the wrong size
            return
        factors = np.broadcast_to(numbers, rows)
        if not isinstance(source.type, TensorType) or source.type not in VECTOR_TYPES:
            raise ModelFileError(
                f"{source.where}: tensor {name!r} is {shown(source)}; its config multiplies it,"
                f" for which one of {', '.join(kind.name for kind in VECTOR_TYPES)} is needed"
            )
        kind, width = source.type, source.n_bytes // rows
        to = kind if len(source.shape) > 1 else TensorType.F32
        size = row_bytes(to, prod(source.shape))

        def make() -> memoryview:
            made, whole = np.empty((rows, size // rows), np.uint8), source.view()
            for start in range(0, rows, step := max(1, SLAB_BYTES // width)):
                part = slice(start, min(start + step, rows))
                values = to_f32(whole[part.start * width : part.stop * width], kind)
                changed = values.reshape(part.stop - part.start, -1) * factors[part, None]
                made[part] = from_floats(changed, to)
            source.release()
            return made.reshape(-1).data.cast("B")

        self.out[name] = self._made(replace(source, type=to), source.shape, size, make)

    def _change(self, name: str, change: Callable[[Floats], Floats]) -> None:
        source = self.out.get(name)
        if source is None or source.type not in VECTOR_TYPES:
            return
        kind, count = TensorType(source.type), prod(source.shape)

        def make() -> memoryview:
            with np.errstate(over="ignore"):  # infinity, which the loader refuses
                made = change(to_f32(source.view(), kind))
            source.release()
            return made.view(np.uint8).data.cast("B")

        floats = replace(source, type=TensorType.F32)
        self.out[name] = self._made(floats, source.shape, 4 * count, make)

    def compute(
        self, name: str, size: int, names: Sequence[str], make: Callable[..., Floats]
    ) -> None:
        """Make a float32 vector of ``size`` values from other tensors, which stay.

        ``make`` gets them as float32, in their shapes.
        """
        if any(one not in self.out for one in names):
            return
        sources = [self.out[one] for one in names]
        kinds = []
        for one, source in zip(names, sources, strict=True):
            if not isinstance(source.type, TensorType) or source.type not in VECTOR_TYPES:
                raise ModelFileError(
                    f"{source.where}: tensor {one!r} is {shown(source)}; accepted:"
                    f" {', '.join(kind.name for kind in VECTOR_TYPES)}"
                )
            kinds.append(source.type)

        def made() -> memoryview:
            values = [
                to_f32(source.view(), kind).reshape(source.shape)
                for source, kind in zip(sources, kinds, strict=True)
            ]
            return np.ascontiguousarray(make(*values)).view(np.uint8).data.cast("B")

        floats = replace(sources[0], type=TensorType.F32)
        self.out[name] = self._made(floats, (size,), 4 * size, made)

    def stack(self, names: Sequence[str], to: str) -> None:
        """Stack matrices of equal shape and type by rows."""
        parts = [self.out.pop(name) for name in names if name in self.out]
        if not parts:
            return
        if len(parts) < len(names):
            raise ModelFileError(
                f"{parts[0].where}: {len(parts)} of the {len(names)} tensors {names[0]!r} to"
                f" {names[-1]!r}"
            )
        first = parts[0]
        for name, part in zip(names, parts, strict=True):
            if (part.shape, part.type, part.table) != (first.shape, first.type, first.table):
                raise ModelFileError(
                    f"{part.where}: tensor {name!r} is {shown(part)}, {names[0]!r} {shown(first)}"
                )

        def make() -> memoryview:
            made = np.empty((len(parts), first.n_bytes), np.uint8)
            for row, part in zip(made, parts, strict=True):
                row[:] = np.frombuffer(part.view(), np.uint8)
                part.release()
            return made.reshape(-1).data.cast("B")

        shape = (len(parts) * first.shape[0], *first.shape[1:])
        self.out[to] = self._made(first, shape, first.n_bytes * len(parts), make)

    def flatten(self, name: str, to: str | None = None, dims: int = 3) -> None:
        """Reshape [experts, rows, columns] to a matrix, [experts, rows] to a vector; same bytes."""
        source = self.out.get(name)
        if source is None or len(source.shape) != dims:
            return
        del self.out[name]
        shape = (source.shape[0] * source.shape[1], *source.shape[2:])
        self.out[to or name] = replace(source, shape=shape)

    def fold(self, name: str, n: int) -> None:
        """Reshape ``n`` experts' [experts, rows, columns] to a matrix: the same bytes."""
        source = self.out.get(name)
        if source is None or len(source.shape) != 2 or source.shape[0] % n:
            return
        shape = (n, source.shape[0] // n, source.shape[1])
        self.out[name] = replace(source, shape=shape)

    def split_experts(self, name: str, parts: Mapping[str, Select], rows: int) -> None:
        """Take ``rows`` rows of each expert of [experts, rows, columns] for each part."""
        source = self.out.pop(name, None)
        if source is None:
            return
        if len(source.shape) not in (2, 3) or source.shape[1] != rows * len(parts):
            raise ModelFileError(f"{source.where}: tensor {name!r} is {shown(source)}")
        n, per_expert = source.shape[:2]
        for part, select in parts.items():

            def make(select: Select = select) -> memoryview:
                whole = np.frombuffer(source.view(), np.uint8).reshape(n, per_expert, -1)
                made = np.ascontiguousarray(select(whole))
                source.release()
                return made.data.cast("B")

            size = source.n_bytes // per_expert * rows
            self.out[part] = self._made(source, (n * rows, *source.shape[2:]), size, make)

    def transpose_experts(self, name: str) -> None:
        """Transpose [experts, inputs, outputs] to [experts, outputs, inputs]."""
        self._transpose(name, dims=3)

    def transpose(self, name: str) -> None:
        """Transpose [inputs, outputs] to [outputs, inputs]."""
        self._transpose(name, dims=2)

    def transpose_parts(self, name: str, n: int) -> None:
        """Transpose each of the ``n`` parts of a matrix, which lie one below the other.

        Floats keep their type. Blocks become Q8_0, rounded once from the decoded weights.
        """
        source = self.out[name]
        outputs, inputs = source.shape
        kind = source.type
        if isinstance(kind, TensorType) and kind in LAYOUTS and outputs // n % GROUP == 0:
            self._turn_blocks(name, kind, n)
            return
        if kind not in VECTOR_TYPES:
            accepted = ", ".join(kind.name for kind in (*VECTOR_TYPES, *LAYOUTS))
            raise ModelFileError(
                f"{source.where}: tensor {name!r} is {shown(source)}, of which each {outputs // n}"
                f" rows become columns; accepted: {accepted}, of blocks a multiple of {GROUP} rows"
            )
        self.out[name] = replace(source, shape=(n, outputs // n, inputs))
        self._transpose(name, dims=3)
        self.out[name] = replace(self.out[name], shape=(n * inputs, outputs // n))

    def _turn_blocks(self, name: str, kind: TensorType, n: int) -> None:
        source = self.out[name]
        outputs, inputs = source.shape
        wide = row_bytes(TensorType.Q8_0, outputs // n)

        def make() -> memoryview:
            parts = np.frombuffer(source.view(), np.uint8).reshape(n, outputs // n, -1)
            made = np.empty((n, inputs, wide), np.uint8)
            for turned, rows in zip(made, parts, strict=True):
                turned[:] = q8_rows(np.ascontiguousarray(weights_of(kind, rows).T))
            source.release()
            return made.reshape(-1).data.cast("B")

        turned = replace(source, type=TensorType.Q8_0)
        shape = (n * inputs, outputs // n)
        self.out[name] = self._made(turned, shape, n * inputs * wide, make)

    def _transpose(self, name: str, dims: int) -> None:
        source = self.out.get(name)
        if source is None or len(source.shape) != dims or not isinstance(source.type, TensorType):
            return
        *before, inputs, outputs = source.shape
        width = row_bytes(source.type, 1)

        def make() -> memoryview:
            values = np.frombuffer(source.view(), f"V{width}").reshape(source.shape)
            made: npt.NDArray[Any] = np.ascontiguousarray(values.swapaxes(-1, -2))
            source.release()
            return made.view(np.uint8).data.cast("B")

        self.out[name] = self._made(source, (*before, outputs, inputs), source.n_bytes, make)

    def join_mxfp4(self, blocks: str, scales: str, to: str) -> None:
        """Make MXFP4 rows of codes [experts, rows, groups, 16], scales [experts, rows, groups]."""
        codes, exponents = self.out.get(blocks), self.out.get(scales)
        if codes is None or exponents is None:
            return
        del self.out[blocks], self.out[scales]
        n, rows, groups = (*exponents.shape, 0, 0, 0)[:3]
        if codes.shape != (n, rows, groups, 16) or not codes.type == exponents.type == "U8":
            raise ModelFileError(
                f"{codes.where}: tensors {blocks!r} and {scales!r} are {shown(codes)} and"
                f" {shown(exponents)}; U8 [experts, rows, groups, 16] and"
                " [experts, rows, groups] are needed"
            )

        def make() -> memoryview:
            made = mxfp4_rows(codes.view(), exponents.view())
            codes.release()
            exponents.release()
            return made

        joined = replace(codes, type=TensorType.MXFP4)
        shape = (n, rows, groups * 32)
        self.out[to] = self._made(joined, shape, n * rows * groups * 17, make)

    def _slice(self, source: SourceTensor, start: int, stop: int) -> memoryview | Converted:
        if isinstance(source.data, memoryview):
            return source.data[start:stop]
        return Converted(stop - start, lambda: source.view()[start:stop], self._last)

    def _made(
        self,
        like: SourceTensor,
        shape: tuple[int, ...],
        size: int,
        make: Callable[[], memoryview],
    ) -> SourceTensor:
        data = Converted(size, make, self._last)
        return replace(like, shape=shape, data=data, release=data.release)

    @staticmethod
    def _check(source: SourceTensor, name: str, rows: int) -> None:
        if not source.shape or source.shape[0] != rows:
            raise ModelFileError(
                f"{source.where}: tensor {name!r} is {shown(source)}; {rows} rows are needed"
            )


def shown(source: SourceTensor) -> str:
    """Return a tensor's type and shape, for errors."""
    kind = source.type.name if isinstance(source.type, TensorType) else source.type
    return f"{kind} {list(source.shape)}"
