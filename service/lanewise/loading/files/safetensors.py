"""Reads safetensors files: the position of each tensor, with every number of the header checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.formats import BLOCKS, TensorType
from lanewise.loading.base.json_files import parse_object
from lanewise.loading.base.mapped_file import LFS_POINTER, MappedFile, lfs_hint

MAX_HEADER_BYTES = 100 << 20
MAX_DIMENSIONS = 8
MAX_SIZE = 2**63 - 1
DTYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}
SIZES = {"U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I32": 4, "I64": 8} | {
    dtype: BLOCKS[kind].n_bytes for dtype, kind in DTYPES.items()
}


@dataclass(frozen=True)
class SafetensorsTensor:
    """The position of a tensor; ``shape`` is row-major, the contiguous dimension last."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int
    n_bytes: int


class SafetensorsFile:
    """A mapped safetensors file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = MappedFile(path)
        try:
            self.tensors = self._read()
        except BaseException:
            self.file.close()
            raise

    def close(self) -> None:
        """Unmap the file."""
        self.file.close()

    def _read(self) -> dict[str, SafetensorsTensor]:
        size = self.file.size
        if size < 8:
            raise ModelFileError(f"{self.path}: {size} bytes; a safetensors file has at least 8")
        header_bytes = int.from_bytes(self.file.view[:8], "little")
        if not 2 <= header_bytes <= min(size - 8, MAX_HEADER_BYTES):
            raise ModelFileError(
                f"{self.path}: header size at byte 0: {header_bytes} does not fit the file's {size}"
                " bytes: it is truncated, or not a safetensors file"
                f"{lfs_hint(bytes(self.file.view[: len(LFS_POINTER)]))}"
            )
        header = parse_object(
            bytes(self.file.view[8 : 8 + header_bytes]), f"{self.path}: header at byte 8"
        )
        data_start = 8 + header_bytes
        self.metadata: Mapping[str, Any] = header.get("__metadata__") or {}
        if not isinstance(self.metadata, dict):
            raise ModelFileError(f"{self.path}: __metadata__ is {self.metadata!r}, not an object")
        tensors = {
            name: self._tensor(name, entry, data_start)
            for name, entry in header.items()
            if name != "__metadata__"
        }
        self._check_overlap(tensors)
        return tensors

    def _tensor(self, name: str, entry: Any, data_start: int) -> SafetensorsTensor:
        where = f"{self.path}: tensor {name!r}"
        if not isinstance(entry, dict):
            raise ModelFileError(f"{where}: the entry is {entry!r}, where an object is needed")
        dtype: Any = entry.get("dtype")
        shape: Any = entry.get("shape")
        offsets: Any = entry.get("data_offsets")
        if not isinstance(dtype, str):
            raise ModelFileError(f"{where}: dtype {dtype!r} is not a string")
        if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
            raise ModelFileError(f"{where}: shape {shape!r} is not a list of sizes")
        if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise ModelFileError(f"{where}: data_offsets {offsets!r} is not [start, end]")
        start, end = data_start + offsets[0], data_start + offsets[1]
        if end > self.file.size:
            raise ModelFileError(
                f"{where}: its data, bytes {start} to {end}, end beyond the file's"
                f" {self.file.size} bytes: the file is truncated or the entry corrupt"
            )
        if dtype in SIZES:  # other dtypes are rejected if the model needs them
            expected = prod(shape) * SIZES[dtype]
            if end - start != expected:
                raise ModelFileError(
                    f"{where}: shape {shape} of {dtype} takes {expected} bytes,"
                    f" data_offsets {offsets} give {end - start}"
                )
        return SafetensorsTensor(name, tuple(shape), dtype, start, end - start)

    def _check_overlap(self, tensors: dict[str, SafetensorsTensor]) -> None:
        previous: SafetensorsTensor | None = None
        for tensor in sorted(tensors.values(), key=lambda t: (t.start, t.n_bytes)):
            if previous is not None and tensor.start < previous.start + previous.n_bytes:
                raise ModelFileError(
                    f"{self.path}: tensor {tensor.name!r} at byte {tensor.start} overlaps"
                    f" {previous.name!r}, bytes {previous.start} to"
                    f" {previous.start + previous.n_bytes}"
                )
            previous = tensor


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(size) is int and 0 <= size <= MAX_SIZE for size in value
    )
