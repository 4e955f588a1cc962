"""Matrices of BitNet, whose weights are -1, 0 or 1 times one scale of the matrix.

Directories have them packed, four rows in a byte: bits 2 i and 2 i + 1 of row r are the weight,
plus 1, of row i * rows / 4 + r. Beside them stands ``weight_scale``. Or they have the weights as
they were trained: a weight divided by the mean magnitude of all is rounded to -1, 0 or 1. GGUF
files may have products of weight and scale. All become CB2, whose codes here stand for -1, 0, 1.

A row's scale is a float of 12 bits times an int8. Scales in bfloat16 and float16 are exact; of
others the nearest product is taken, which differs by 2^-15 at most and by 2^-18 mostly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Converted, LastConverted, ModelFileError
from lanewise.loading.base.formats import STORED_ROW_INPUTS, VECTOR_TYPES, TensorType, row_bytes
from lanewise.loading.base.sources import Sources, SourceTensor
from lanewise.loading.files.rearranging import from_floats, to_f32
from lanewise.loading.quantized.quantization import Ternary

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]  # -1, 0 and 1
Made = tuple[Codes, np.float32]

WEIGHT, SCALE, LAYERS = ".weight", "_scale", "model.layers."
PER_BYTE = 4
LEAST_MEAN = np.float32(1e-5)  # of trained weights
TABLE = np.resize(np.array([-1, 0, 1, 0], np.int8), 16)  # the same for each selector


def ternary_sources(sources: Sources, found: Ternary) -> dict[str, SourceTensor]:
    """Return the tensors with the matrices of all layers as CB2."""
    out = {name: one for name, one in sources.items() if not name.endswith(WEIGHT + SCALE)}
    last = LastConverted()
    for name, one in list(out.items()):
        if not (name.startswith(LAYERS) and name.endswith(WEIGHT) and len(one.shape) == 2):
            continue
        if found.is_online:
            out[name] = trained(name, one, last)
            continue
        scale = _scale_of(name, sources, found)
        out[name] = (
            _packed(one, scale, last) if one.type == "U8" else ternary(name, one, last, scale)
        )
    return out


def _scale_of(name: str, sources: Sources, found: Ternary) -> np.float32:
    source = sources.get(name + SCALE)
    where = sources[name].where
    if source is None:
        raise ModelFileError(f"{where}: missing tensor {name + SCALE!r}")
    if source.type not in VECTOR_TYPES or prod(source.shape) != 1:
        raise ModelFileError(f"{where}: tensor {name + SCALE!r} is not one number")
    value = np.float32(to_f32(source.view(), TensorType(source.type))[0])
    if not np.isfinite(value) or value <= 0:
        raise ModelFileError(f"{where}: tensor {name + SCALE!r} is {value}; a number above 0")
    return np.float32(1 / value) if found.divides else value


def _packed(source: SourceTensor, scale: np.float32, last: LastConverted) -> SourceTensor:
    rows, cols = source.shape[0] * PER_BYTE, source.shape[1]

    def make() -> Made:
        stored = np.frombuffer(source.view(), np.uint8).reshape(-1, cols)
        parts = [stored >> np.uint8(2 * i) & np.uint8(3) for i in range(PER_BYTE)]
        codes = np.concatenate(parts)
        if codes.max(initial=0) > 2:
            raise ModelFileError(f"{source.where}: a weight that is none of -1, 0 and 1")
        return codes.astype(np.int8) - np.int8(1), scale

    return _made(replace(source, shape=(rows, cols)), make, last)


def trained(name: str, source: SourceTensor, last: LastConverted) -> SourceTensor:
    """Round trained weights to multiples of their mean magnitude, which has the weights' type."""
    kind = _float_type(name, source)

    def make() -> Made:
        values = to_f32(source.view(), kind).reshape(source.shape)
        mean = np.float32(np.abs(values).mean(dtype=np.float64))
        inverse = np.float32(1) / np.maximum(mean, LEAST_MEAN)
        codes = np.clip(np.rint(values * inverse), -1, 1).astype(np.int8)
        stored = from_floats(np.array([np.float32(1) / inverse], np.float64), kind)
        return codes, np.float32(to_f32(stored.data.cast("B"), kind)[0])

    return _made(source, make, last)


def ternary(
    name: str, source: SourceTensor, last: LastConverted, scale: float | np.float32 = 1.0
) -> SourceTensor:
    """Take apart products of weight and scale, of which ``scale`` is another factor."""
    kind = _float_type(name, source)

    def make() -> Made:
        values = to_f32(source.view(), kind).reshape(source.shape)
        most = np.abs(values).max(initial=0)
        if not np.isin(values, (0, most, -most)).all():
            raise ModelFileError(
                f"{source.where}: tensor {name!r} holds other values than 0 and {most:g} of either"
                " sign, which are needed of BitNet"
            )
        return np.sign(values).astype(np.int8), np.float32(most * np.float32(scale))

    return _made(source, make, last)


def _float_type(name: str, source: SourceTensor) -> TensorType:
    if not isinstance(source.type, TensorType) or source.type not in VECTOR_TYPES:
        raise ModelFileError(
            f"{source.where}: tensor {name!r} is {source.type}; of BitNet's matrices accepted are"
            f" {', '.join(kind.name for kind in VECTOR_TYPES)}"
        )
    return source.type


def nearest_factors(scale: np.float32) -> tuple[int, np.float32]:
    """Return the int8 and the float of 12 bits whose product is nearest; of equals the least."""
    factors = np.arange(1, 128, dtype=np.float64)
    quotients = (np.float64(scale) / factors).astype(np.float32)
    bits = quotients.view(np.uint32) + np.uint32(0x800) & np.uint32(0xFFFFF000)
    rounded = bits.view(np.float32)
    best = int(np.argmin(np.abs(rounded * factors - np.float64(scale))))
    return best + 1, rounded[best]


def _made(source: SourceTensor, make: Callable[[], Made], last: LastConverted) -> SourceTensor:
    """Rows of CB2, or floats where a row is no whole number of groups."""
    rows, cols = source.shape
    is_whole = cols % STORED_ROW_INPUTS == 0
    kind = TensorType.CB2 if is_whole else TensorType.F32
    size = row_bytes(kind, cols)

    def stored() -> memoryview:
        codes, scale = make()
        source.release()
        if not is_whole:
            floats = codes * scale
            return floats.view(np.uint8).reshape(-1).data.cast("B")
        factor, row_scale = nearest_factors(scale)
        rows_of = np.zeros((rows, size), np.uint8)
        low = cols // PER_BYTE
        for i in range(PER_BYTE):
            rows_of[:, :low] |= (codes[:, i::PER_BYTE] + 1).astype(np.uint8) << np.uint8(2 * i)
        rows_of[:, low : low + cols // STORED_ROW_INPUTS] = factor
        rows_of[:, -4:] = np.frombuffer(row_scale.tobytes(), np.uint8)
        return rows_of.reshape(-1).data.cast("B")

    data = Converted(rows * size, stored, last)
    table = TABLE.tobytes() if is_whole else None
    return SourceTensor(source.where, source.shape, kind, data, data.release, table=table)
