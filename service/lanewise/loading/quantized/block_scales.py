"""Scales that are powers of two, and four-bit floats with such scales (DeepSeek V4).

- ``weight`` in F8_E4M3 with ``scale``, which others name ``weight_scale_inv``: F32, or F8_E8M0, a
  byte e for 2^(e - 127), of blocks.

- ``weight`` in I8 [outputs, inputs / 2], even inputs in the low bits, codes of E2M1, with ``scale``
  in F8_E8M0 [outputs, inputs / 32]: rows of MXFP4, with the same codes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Converted, LastConverted, ModelFileError
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.sources import Sources, SourceTensor
from lanewise.loading.files.rearranging import mxfp4_rows

Bytes = npt.NDArray[np.uint8]
WEIGHT, SCALE, USUAL = ".weight", ".scale", ".weight_scale_inv"
E8M0 = "F8_E8M0"
CODES = ("F8_E4M3", "F8_E5M2", "I8")
GROUP = 32  # inputs of a scale of four-bit floats
BIAS, NAN = 127, 255


def plain_scales(sources: Sources) -> dict[str, SourceTensor]:
    """Return the tensors with scales as floats, by their usual names, and four-bit ones joined."""
    out, last = dict(sources), LastConverted()
    for name in [name for name in sources if name.endswith(WEIGHT)]:
        layer = name.removesuffix(WEIGHT)
        if out[name].type in CODES and layer + SCALE in out:
            out[layer + USUAL] = out.pop(layer + SCALE)
        scales = out.get(layer + USUAL)
        if scales is None or scales.type != E8M0:
            continue
        if out[name].type == "I8":
            out[name] = _joined(name, out[name], out.pop(layer + USUAL), last)
        else:
            out[layer + USUAL] = _floats(layer + USUAL, scales, last)
    return out


def _exponents(name: str, scales: SourceTensor) -> Bytes:
    found: Bytes = np.frombuffer(scales.view(), np.uint8)
    if (found == NAN).any():
        raise ModelFileError(f"{scales.where}: tensor {name!r} holds NaN")
    return found


def _floats(name: str, scales: SourceTensor, last: LastConverted) -> SourceTensor:
    def make() -> memoryview:
        powers = _exponents(name, scales).astype(np.int32) - BIAS
        values = np.ldexp(np.float32(1), powers).astype(np.float32)
        return values.view(np.uint8).data.cast("B")

    data = Converted(4 * scales.n_bytes, make, last)
    return SourceTensor(scales.where, scales.shape, TensorType.F32, data, data.release)


def _joined(
    name: str, codes: SourceTensor, scales: SourceTensor, last: LastConverted
) -> SourceTensor:
    """Rows of MXFP4: for each 32 inputs the scale, then codes of inputs j and j + 16 in a byte."""
    *stack, rows, half = codes.shape
    shape = (*stack, rows, 2 * half)
    if shape[-1] % GROUP or scales.shape != (*stack, rows, shape[-1] // GROUP):
        raise ModelFileError(
            f"{codes.where}: tensor {name!r} is {list(codes.shape)} beside scales"
            f" {list(scales.shape)}; needed: a scale for each {GROUP} inputs, two of them in a byte"
        )

    def make() -> memoryview:
        made = mxfp4_rows(codes.view(), _exponents(name, scales).data)
        codes.release()
        scales.release()
        return made

    data = Converted(scales.n_bytes * (1 + GROUP // 2), make, last)
    return SourceTensor(codes.where, shape, TensorType.MXFP4, data, data.release)
