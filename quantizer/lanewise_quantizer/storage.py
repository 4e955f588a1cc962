"""Rows of every storage type (quantizer/FORMAT.md, section 1), to floats and from matrices."""

from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise_quantizer.coded import CODED_TYPES, CodedMatrix, coded_type
from lanewise_quantizer.gguf_blocks import (
    LAYOUTS,
    block_inputs,
    block_row_bytes,
    decode_blocks,
    encode_blocks,
)

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

FLOAT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
LARGEST_F16 = 65504.0


def row_multiple(name: str) -> int:
    """What the inputs of a row of this type must be a multiple of."""
    if name in FLOAT_BYTES:
        return 1
    return block_inputs(CODED_TYPES[name]) if name in LAYOUTS else 32


def row_bytes(name: str, cols: int) -> int:
    """Bytes of a row of ``cols`` inputs."""
    if name in FLOAT_BYTES:
        return cols * FLOAT_BYTES[name]
    kind = coded_type(name)
    return block_row_bytes(kind, cols) if name in LAYOUTS else kind.row_bytes(cols)


def decode_rows(name: str, data: Bytes, cols: int, table: Array | None = None) -> Floats:
    """The weights [rows, cols] of rows [rows, bytes]; exact. ValueError for scales not finite."""
    if name == "bf16":
        wide = data.view("<u2").astype(np.uint32)
        wide <<= np.uint32(16)
        return wide.view(np.float32)
    if name in FLOAT_BYTES:
        return data.view("<f4" if name == "f32" else "<f2").astype(np.float32)
    kind = coded_type(name)
    if name in LAYOUTS:
        return decode_blocks(kind, data, cols).decode()
    return CodedMatrix.from_rows(kind, data, cols, table).decode()


def encode_rows(matrix: CodedMatrix) -> Bytes:
    """The rows [rows, bytes] of a matrix: GGUF's blocks for GGUF's types, else stored rows."""
    return encode_blocks(matrix) if matrix.type.name in LAYOUTS else matrix.to_rows()


def encode_floats(name: str, weights: Floats) -> Bytes:
    """Rows [rows, bytes] of a float type, rounded to nearest even."""
    if name == "f32":
        return weights.astype("<f4").view(np.uint8)
    if name == "f16":
        largest = float(np.abs(weights).max(initial=0))
        if largest > LARGEST_F16:
            raise ValueError(f"{largest:.4g} is beyond f16; accepted: up to {LARGEST_F16:g}")
        return weights.astype("<f2").view(np.uint8)
    bits = np.ascontiguousarray(weights).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype("<u2").view(np.uint8)


def checksum(data: Bytes, offset: int) -> int:
    """The part that bytes from ``offset`` on, a multiple of 8, have in their tensor's checksum."""
    flat = data.reshape(-1)
    words = np.pad(flat, (0, -len(flat) % 8)).view("<u8")
    first = offset // 8
    odd = np.arange(first, first + len(words), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return int((words * odd).sum(dtype=np.uint64))
