"""Reads GGUF files, versions 2 and 3: metadata and tensor positions, with every number checked."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.formats import BLOCKS, STORED_ROWS, TensorType
from lanewise.loading.base.mapped_file import LFS_POINTER, MappedFile, lfs_hint
from lanewise.loading.base.sources import SourceTensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
COUNTS_END = 24  # magic, version, number of tensors, number of metadata entries
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 1024
MAX_ARRAY_DEPTH = 2
WINDOW_BYTES = 8 << 20

STRING, ARRAY = 8, 9
WHOLE_NUMBERS = {TensorType.I32: 4, TensorType.I64: 8}  # tensors of other things than weights
# Value type id to struct and array codes; both are little-endian on every machine we run on.
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(frozen=True)
class GgufTensor:
    """The position of a tensor; ``shape`` is in GGUF's order, the contiguous dimension first."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    start: int
    n_bytes: int


class GgufFile:
    """A mapped GGUF file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = MappedFile(path)
        try:
            reader = _Reader(path, self.file.view)
            self.metadata, self.tensors = reader.read()
            self.value_spans = reader.value_spans
        except BaseException:
            self.file.close()
            raise

    def close(self) -> None:
        """Unmap the file."""
        self.file.close()


def architecture_at(start: bytes) -> str | None:
    """Return general.architecture from the first bytes of a file; None if it is not in them."""
    return texts_at(start).get("general.architecture")


def texts_at(start: bytes) -> dict[str, str]:
    """Return those metadata in a file's first bytes that are text; none if it is no GGUF file."""
    found: dict[str, str] = {}
    if not start.startswith(MAGIC):
        return found
    reader = _Reader(Path("the file's start"), memoryview(start))
    reader.position = COUNTS_END
    with suppress(ModelFileError):  # the header continues after these bytes
        while True:
            key = reader.string("key", MAX_NAME_BYTES)
            value = reader.value(reader.scalar("I", key), key, 0)
            if isinstance(value, str):
                found[key] = value
    return found


class _Reader:
    """A cursor over the header; each read names its field for the error message."""

    def __init__(self, path: Path, view: memoryview) -> None:
        self.path = path
        self.view = view
        self.size = len(view)
        self.position = 0
        self.value_spans: dict[str, tuple[int, int]] = {}  # byte range of each key's value

    def fail(self, field: str, offset: int, problem: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {field} at byte {offset}: {problem}")

    def read(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        magic = bytes(self.view[:4])
        if magic != MAGIC:
            hint = lfs_hint(bytes(self.view[: len(LFS_POINTER)]))
            self.fail("magic", 0, f"{magic!r} is not {MAGIC!r}: this is not a GGUF file{hint}")
        self.position = 4
        version = self.scalar("I", "version")
        if version not in VERSIONS:
            hint = " (a big-endian file)" if version in (v << 24 for v in VERSIONS) else ""
            self.fail("version", 4, f"{version}{hint} is not supported; accepted are 2 and 3")
        tensor_count = self.count("tensor count", least_bytes=24)
        metadata_count = self.count("metadata count", least_bytes=13)
        metadata: dict[str, Any] = {}
        for index in range(metadata_count):
            start = self.position
            key = self.string(f"metadata key {index}", MAX_NAME_BYTES)
            if key in metadata:
                self.fail(f"metadata key {index}", start, f"{key!r} occurs twice")
            begin = self.position
            metadata[key] = self.value(self.scalar("I", f"{key} value type"), key, 0)
            self.value_spans[key] = begin, self.position
        return metadata, self.tensor_table(tensor_count, metadata)

    def scalar(self, code: str, field: str) -> Any:
        start = self.position
        end = start + struct.calcsize("<" + code)
        if end > self.size:
            self.truncated(field, end)
        self.position = end
        return struct.unpack_from("<" + code, self.view, start)[0]

    def truncated(self, field: str, end: int) -> NoReturn:
        self.fail(
            field,
            self.position,
            f"needs {end - self.position} bytes, but the file ends at byte {self.size}:"
            " it is truncated",
        )

    def count(self, field: str, least_bytes: int) -> int:
        start = self.position
        count: int = self.scalar("Q", field)
        if count > (self.size - self.position) // least_bytes:
            self.fail(field, start, f"{count} cannot fit in the {self.size} bytes of the file")
        return count

    def string(self, field: str, longest: int | None = None) -> str:
        start = self.position
        length: int = self.scalar("Q", f"length of {field}")
        end = self.position + length
        if longest is not None and length > longest:
            self.fail(field, start, f"its length {length} is above {longest}")
        if end > self.size:
            self.truncated(field, end)
        try:
            text = str(self.view[self.position : end], "utf-8")
        except UnicodeDecodeError as error:
            self.fail(field, start, f"not UTF-8: {error.reason}")
        self.position = end
        return text

    def value(self, kind: int, key: str, depth: int) -> Any:
        if kind == STRING:
            return self.string(key)
        if kind == ARRAY:
            return self.array(key, depth + 1)
        if kind == 7:
            return self.scalar("B", key) != 0
        if kind not in SCALARS:
            self.fail(key, self.position - 4, f"value type {kind} is unknown; accepted are 0 to 12")
        return self.scalar(SCALARS[kind], key)

    def array(self, key: str, depth: int) -> list[Any]:
        if depth > MAX_ARRAY_DEPTH:
            self.fail(key, self.position, f"arrays nested deeper than {MAX_ARRAY_DEPTH}")
        kind: int = self.scalar("I", f"{key} element type")
        if kind == STRING:
            return self.strings(key, self.count(f"{key} element count", least_bytes=8))
        if kind == ARRAY:
            count = self.count(f"{key} element count", least_bytes=12)
            return [self.array(key, depth + 1) for _ in range(count)]
        if kind not in SCALARS:
            self.fail(key, self.position - 4, f"element type {kind} is unknown")
        code = "B" if kind == 7 else SCALARS[kind]
        width = struct.calcsize("<" + code)
        count = self.count(f"{key} element count", least_bytes=width)
        end = self.position + count * width
        numbers = array(code, bytes(self.view[self.position : end])).tolist()
        self.position = end
        return [number != 0 for number in numbers] if kind == 7 else numbers

    def strings(self, key: str, count: int) -> list[str]:
        # The one hot loop: vocabularies and merges have hundreds of thousands of entries. Slicing a
        # copy is twice as fast as slicing the map, so windows of the map are copied.
        texts: list[str] = []
        append, length_at = texts.append, struct.Struct("<Q").unpack_from
        while len(texts) < count:
            window = bytes(self.view[self.position : self.position + WINDOW_BYTES])
            end, known, complete = 0, len(texts), len(window)
            try:
                for _ in range(count - known):
                    start = end + 8
                    stop = start + length_at(window, end)[0]
                    if stop > complete:
                        break
                    append(window[start:stop].decode())
                    end = stop
            except (struct.error, UnicodeDecodeError):
                pass  # end of the window or file, or an error that the slow path reports
            self.position += end
            if len(texts) == known:
                append(self.string(f"{key}[{known}]"))
        return texts

    def tensor_table(self, count: int, metadata: dict[str, Any]) -> dict[str, GgufTensor]:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
            raise ModelFileError(
                f"{self.path}: general.alignment: {alignment!r} is not a power of two of at least 8"
            )
        entries = [self.tensor_entry(index) for index in range(count)]
        data_start = -(-self.position // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset, entry_at in entries:
            if name in tensors:
                self.fail(f"tensor {name!r}", entry_at, "occurs twice")
            if offset % alignment:
                self.fail(
                    f"tensor {name!r}",
                    entry_at,
                    f"offset {offset} is not a multiple of the alignment {alignment}",
                )
            start, n_bytes = data_start + offset, self.n_bytes(name, shape, kind, entry_at)
            if start + n_bytes > self.size:
                self.fail(
                    f"tensor {name!r}",
                    entry_at,
                    f"its data, bytes {start} to {start + n_bytes}, end beyond the file's"
                    f" {self.size} bytes: the file is truncated or the entry corrupt",
                )
            tensors[name] = GgufTensor(name, shape, kind, start, n_bytes)
        self.check_overlap(tensors.values())
        return tensors

    def tensor_entry(self, index: int) -> tuple[str, tuple[int, ...], TensorType, int, int]:
        start = self.position
        name = self.string(f"name of tensor {index}", MAX_NAME_BYTES)
        field = f"tensor {name!r}"
        n_dims: int = self.scalar("I", f"{field} dimension count")
        if not 1 <= n_dims <= MAX_DIMENSIONS:
            self.fail(field, start, f"{n_dims} dimensions; accepted are 1 to {MAX_DIMENSIONS}")
        shape = tuple(self.scalar("Q", f"{field} dimension {axis}") for axis in range(n_dims))
        if min(shape) == 0:
            self.fail(field, start, f"shape {list(shape)} has a dimension of 0")
        kind: int = self.scalar("I", f"{field} type")
        try:
            tensor_type = TensorType(kind)
            if tensor_type in STORED_ROWS:
                raise ValueError(kind)
        except ValueError:
            self.fail(field, start, f"type {kind} is unknown; {accepted_types()}")
        offset: int = self.scalar("Q", f"{field} offset")
        return name, shape, tensor_type, offset, start

    def n_bytes(self, name: str, shape: tuple[int, ...], kind: TensorType, entry_at: int) -> int:
        if kind in WHOLE_NUMBERS:
            return prod(shape) * WHOLE_NUMBERS[kind]
        block = BLOCKS.get(kind)
        if block is None:  # rejected later, if the model needs this tensor
            return 0
        if shape[0] % block.weights:
            self.fail(
                f"tensor {name!r}",
                entry_at,
                f"rows of {shape[0]} weights are not whole {kind.name} blocks of {block.weights}",
            )
        return prod(shape) // block.weights * block.n_bytes

    def check_overlap(self, tensors: Iterable[GgufTensor]) -> None:
        previous: GgufTensor | None = None
        for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.n_bytes)):
            if previous is not None and tensor.start < previous.start + previous.n_bytes:
                raise ModelFileError(
                    f"{self.path}: tensor {tensor.name!r} at byte {tensor.start} overlaps"
                    f" {previous.name!r}, bytes {previous.start} to"
                    f" {previous.start + previous.n_bytes}"
                )
            previous = tensor


def read_sources(files: list[GgufFile]) -> dict[str, SourceTensor]:
    """Return the tensors of all files by name."""
    found: dict[str, SourceTensor] = {}
    for file in files:
        for name, tensor in file.tensors.items():
            if name in found:
                raise ModelFileError(f"{file.path}: tensor {name!r} is in {found[name].where} too")
            found[name] = SourceTensor(
                where=str(file.path),
                shape=tuple(reversed(tensor.shape)),
                type=tensor.type,
                data=file.file.view[tensor.start : tensor.start + tensor.n_bytes],
                release=file.file.releaser(tensor.start, tensor.n_bytes),
            )
    return found


def accepted_types() -> str:
    """Return a phrase that lists the tensor types that the native library reads."""
    return "accepted are " + ", ".join(kind.name for kind in BLOCKS)
