"""Rows of packed matrices, bit for bit, and weights of types that only files have."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import ModelFileError, Tensor
from lanewise.loading.base.formats import TABLE_BYTES, TensorType
from lanewise.native.library import NativeError, native

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def packed_rows(tensor: Tensor, row_bytes: int) -> Bytes:
    """Return the rows [rows, row_bytes] of a packed matrix, packed for whatever level.

    They are as ``lw_packed_rows`` says: GGUF's coded types are stored rows, not blocks.
    ModelFileError if the checksum is wrong.
    """
    assert tensor.packing is not None
    ffi, lib = native().ffi, native().lib
    rows = np.empty((tensor.rows, row_bytes), np.uint8)
    name = ffi.new("char[]", tensor.name.encode())
    with ffi.from_buffer("char[]", tensor.data) as data:
        struct = ffi.new("lw_packed_tensor*", {"name": name, "data": data})
        struct.n_bytes, struct.checksum = tensor.n_bytes, tensor.packing.checksum
        struct.type, struct.rows, struct.cols = int(tensor.type), tensor.rows, tensor.cols
        struct.layout = tensor.packing.layout.encode()[:15]
        if tensor.table is not None:
            ffi.memmove(struct.table, tensor.table, TABLE_BYTES)
        try:
            native().check(lib.lw_packed_rows(struct, ffi.from_buffer(rows), rows.nbytes))
        except NativeError as error:
            if error.status == lib.LW_ERR_FORMAT:
                raise ModelFileError(f"tensor {error}") from None
            raise
    return rows


def file_weights(tensor: Tensor) -> Floats:
    """Return the weights [rows, cols] of a tensor of a type that only files have (``HELD``)."""
    return row_weights(tensor.type, tensor.data, tensor.rows, tensor.cols)


def row_weights(kind: TensorType, rows: Any, n_rows: int, cols: int) -> Floats:
    """Return the weights [rows, cols] of the bytes of rows of a type that only files have."""
    ffi, lib = native().ffi, native().lib
    weights = np.empty((n_rows, cols), np.float32)
    with ffi.from_buffer("char[]", rows) as data:
        struct = ffi.new("lw_tensor*", {"data": data, "n_bytes": len(data)})
        struct.type, struct.rows, struct.cols = int(kind), n_rows, cols
        native().check(
            lib.lw_file_weights(struct, ffi.from_buffer("float[]", weights), weights.size)
        )
    return weights
