"""Orders in which codes lie: bit planes, the lowest bits first, and the chain of a trellis."""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Element = TypeVar("Element", bound=np.generic)
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


def chained(values: npt.NDArray[Element]) -> npt.NDArray[Element]:
    """Inputs [..., cols] in the order of a trellis's chain, or back: 4 x 4 transposed in each 16.

    Inputs 0, 4, 8 and 12 of 16 come first, then 1, 5, 9 and 13. Kernels have four inputs of an
    output side by side: so the chain's codes are neighbours in one number of 32 bits.
    """
    blocks = values.reshape(*values.shape[:-1], -1, 4, 4)
    return np.ascontiguousarray(blocks.swapaxes(-1, -2)).reshape(values.shape)
