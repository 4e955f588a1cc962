"""Bit planes: values of 1, 2, 4 or 8 bits one after the other, the lowest bits first."""

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def pack_plane(values: npt.NDArray[Any], bits: int) -> Bytes:
    """Pack values [rows, n] below ``2 ** bits`` into [rows, n * bits / 8] bytes."""
    if bits == 8:
        return values.astype(np.uint8)
    if bits == 1:
        return np.packbits(values, axis=1, bitorder="little")
    per_byte = 8 // bits
    out: Bytes = values[:, ::per_byte].astype(np.uint8)
    for i in range(1, per_byte):
        out |= values[:, i::per_byte] << np.uint8(bits * i)
    return out


def unpack_plane(data: Bytes, bits: int) -> Bytes:
    """Unpack [rows, n] bytes into values [rows, n * 8 / bits]."""
    if bits == 8:
        return data.copy()
    if bits == 1:
        return np.unpackbits(data, axis=1, bitorder="little")
    per_byte = 8 // bits
    out = np.empty((data.shape[0], data.shape[1] * per_byte), np.uint8)
    for i in range(per_byte):
        out[:, i::per_byte] = data >> np.uint8(bits * i) & np.uint8((1 << bits) - 1)
    return out
