"""Makes rows of FP4 from NVFP4 matrices: floats of four bits with a scale for each 16 inputs.

- ModelOpt: ``weight`` in U8 [outputs, inputs / 2], even inputs in the low bits; ``weight_scale`` in
  F8_E4M3 [outputs, inputs / 16]; ``weight_scale_2``, one F32 that multiplies all. Stacked matrices
  have one more dimension in front, and a ``weight_scale_2`` each.

- compressed-tensors' ``nvfp4-pack-quantized``: the same as ``weight_packed``, ``weight_scale`` and
  ``weight_global_scale``, which divides.

- GGUF: blocks of 64 inputs, four E4M3 bytes and then, for each 16 inputs, eight bytes with the
  first eight in the low bits; beside ``name.weight`` perhaps ``name.scale``, one F32 for each
  matrix, which multiplies.

A row of FP4 has the same codes and scales. What multiplies all becomes the scale of each row,
rounded to 16 significant bits.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Converted, LastConverted, ModelFileError
from lanewise.loading.base.formats import STORED_ROW_INPUTS, TensorType, row_bytes
from lanewise.loading.base.sources import Sources, SourceTensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
WEIGHT, PACKED, SCALES = ".weight", ".weight_packed", ".weight_scale"
WHOLE, GLOBAL = ".weight_scale_2", ".weight_global_scale"
GGUF_SCALE, GGUF_UNREAD = ".scale", ".input_scale"
GROUP, SUBBLOCKS = 16, 4  # inputs of a scale; scales of a block of GGUF
NAN = 0x7F  # which counts as 0
HALF = np.float32(0.5)  # the integers that stand for the floats are twice as large


def nvfp4_sources(sources: Sources) -> dict[str, SourceTensor]:
    """Return the tensors with each NVFP4 matrix of a Hugging Face directory in FP4."""
    out, last = dict(sources), LastConverted()
    for scales_name in [name for name in sources if name.endswith(SCALES)]:
        layer = scales_name.removesuffix(SCALES)
        name = next((layer + end for end in (PACKED, WEIGHT) if layer + end in out), None)
        if name is None or out[name].type != "U8" or sources[scales_name].type != "F8_E4M3":
            continue
        codes, scales = out.pop(name), out.pop(scales_name)
        whole = _whole(layer, codes, out)
        *stack, rows, half = codes.shape
        shape = (*stack, rows, 2 * half)
        if scales.shape != (*stack, rows, shape[-1] // GROUP):
            raise ModelFileError(
                f"{codes.where}: tensor {scales_name!r} is {list(scales.shape)} beside codes"
                f" {list(codes.shape)}; needed: a scale for each {GROUP} inputs"
            )

        def parts(
            codes: SourceTensor = codes, scales: SourceTensor = scales
        ) -> tuple[Bytes, Bytes]:
            made = _bytes(codes), _bytes(scales)
            codes.release()
            scales.release()
            return made

        out[layer + WEIGHT] = _rows(layer + WEIGHT, codes, shape, whole, parts, last)
    return out


def nvfp4_blocks(sources: Sources) -> dict[str, SourceTensor]:
    """Return the tensors of a GGUF file with each matrix in NVFP4 as one in FP4."""
    out, last = dict(sources), LastConverted()
    for name in [name for name, one in sources.items() if one.type == TensorType.NVFP4]:
        codes, layer = out[name], name.removesuffix(WEIGHT)
        out.pop(layer + GGUF_UNREAD, None)
        scale = out.pop(layer + GGUF_SCALE, None)
        count = prod(codes.shape[:-2])
        whole = np.ones(count, np.float32) if scale is None else _floats(name, scale, count)

        def parts(codes: SourceTensor = codes) -> tuple[Bytes, Bytes]:
            blocks = np.frombuffer(codes.view(), np.uint8).reshape(-1, SUBBLOCKS + 8 * SUBBLOCKS)
            pairs = blocks[:, SUBBLOCKS:].reshape(-1, 8)  # of inputs j and j + 8 of 16
            made = np.empty_like(pairs)
            made[:, :4] = pairs[:, ::2] & 15 | pairs[:, 1::2] << 4
            made[:, 4:] = pairs[:, ::2] >> 4 | pairs[:, 1::2] & np.uint8(0xF0)
            scales = np.ascontiguousarray(blocks[:, :SUBBLOCKS])
            codes.release()
            return made, scales

        out[name] = _rows(name, codes, codes.shape, whole, parts, last)
    return out


def _whole(layer: str, codes: SourceTensor, out: dict[str, SourceTensor]) -> Floats:
    """Take what multiplies all weights of each stacked matrix out of ``out``."""
    found = next((end for end in (WHOLE, GLOBAL) if layer + end in out), None)
    if found is None:
        raise ModelFileError(
            f"{codes.where}: layer {layer!r} is NVFP4 without {WHOLE[1:]} or {GLOBAL[1:]}"
        )
    values = _floats(layer + found, out.pop(layer + found), prod(codes.shape[:-2]))
    if found == GLOBAL and (values == 0).any():
        raise ModelFileError(f"{codes.where}: tensor {layer + GLOBAL!r} holds 0, which divides")
    return np.float32(1) / values if found == GLOBAL else values


def _floats(name: str, source: SourceTensor, count: int) -> Floats:
    if source.type != TensorType.F32 or prod(source.shape) not in (1, count):
        raise ModelFileError(
            f"{source.where}: what multiplies {name!r} is {source.type!s} {list(source.shape)};"
            f" accepted: F32, one value or {count}"
        )
    values: Floats = np.frombuffer(source.view(), "<f4")
    if not np.isfinite(values).all():
        raise ModelFileError(f"{source.where}: what multiplies {name!r} is NaN or infinity")
    return np.broadcast_to(values, count)


def _bytes(source: SourceTensor) -> Bytes:
    return np.frombuffer(source.view(), np.uint8)


def _rows(
    name: str,
    codes: SourceTensor,
    shape: tuple[int, ...],
    whole: Floats,
    parts: Callable[[], tuple[Bytes, Bytes]],
    last: LastConverted,
) -> SourceTensor:
    """A matrix of FP4; ``parts`` makes its codes and the bytes of its scales."""
    rows, cols = prod(shape[:-1]), shape[-1]
    if cols % STORED_ROW_INPUTS:
        raise ModelFileError(
            f"{codes.where}: tensor {name!r} has rows of {cols} inputs in NVFP4; accepted:"
            f" multiples of {STORED_ROW_INPUTS}"
        )
    bits = (whole * HALF).view(np.uint32) + np.uint32(0x80) & np.uint32(0xFFFFFF00)
    of_rows = bits.repeat(rows // len(bits)).view(np.uint8).reshape(rows, 4)
    n_bytes, at = row_bytes(TensorType.FP4, cols), cols // 2

    def make() -> memoryview:
        made = np.empty((rows, n_bytes), np.uint8)
        low, scales = parts()
        made[:, :at] = low.reshape(rows, -1)
        scales = scales.reshape(rows, -1) & np.uint8(NAN)  # the sign is not used
        made[:, at:-4] = np.where(scales == NAN, np.uint8(0), scales)
        made[:, -4:] = of_rows
        return made.reshape(-1).data.cast("B")

    data = Converted(rows * n_bytes, make, last)
    return SourceTensor(codes.where, shape, TensorType.FP4, data, data.release)
