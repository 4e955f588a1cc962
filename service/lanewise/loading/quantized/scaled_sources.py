"""Converts matrices stored as 8-bit codes with scales, or as NF4 or FP4, to floats.

- FP8 (transformers' ``fp8`` of DeepSeek and Qwen, FBGEMM, ModelOpt, compressed-tensors'
``float-quantized``): ``weight`` in F8_E4M3 or F8_E5M2, times ``weight_scale_inv`` or
``weight_scale``: of the matrix [] or [1], of rows [outputs] or [outputs, 1], or of blocks. Stacked
matrices and their scales have one more dimension in front.

- NVFP4 stays integers: ``nvfp4``. So do four-bit floats of DeepSeek V4: ``block_scales``.

- compressed-tensors' ``int-quantized``: the same with ``weight`` in I8.

- bitsandbytes' NF4 and FP4: ``weight`` in U8, two codes a byte, the first in the high bits.
``weight.quant_map`` has the codes' values. ``weight.absmax`` has a factor for each block, and may
itself be coded (``nested``). ``weight.quant_state.bitsandbytes__nf4`` is JSON with the rest.

Each value is one product of two float32 values, rounded once. Integers with a scale for each row
stay integers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Converted, LastConverted, ModelFileError
from lanewise.loading.base.formats import STORED_ROW_INPUTS, VECTOR_TYPES, TensorType, row_bytes
from lanewise.loading.base.json_files import Fields, parse_object
from lanewise.loading.base.sources import Sources, SourceTensor
from lanewise.loading.files.rearranging import to_f32
from lanewise.loading.quantized.block_scales import plain_scales
from lanewise.loading.quantized.nvfp4 import nvfp4_sources
from lanewise.loading.quantized.quantization import Scaled

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

SCALES = ("_scale_inv", "_scale")  # suffixes of the names of scales
# Scales of activations, keys and values, which are computed here; shapes.
UNREAD = (
    *(".input_scale", ".input_global_scale", ".output_scale", ".activation_scale"),
    *(".k_scale", ".v_scale"),
)
ZEROS, STATE = "_zero_point", ".quant_state.bitsandbytes__"
NESTED = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")


def float8_values(exponent_bits: int) -> Floats:
    """Return the values of all codes of E4M3 (without infinities) or E5M2."""
    mantissa_bits = 7 - exponent_bits
    codes = np.arange(256)
    exponent = codes >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = (codes & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
    bias = (1 << exponent_bits - 1) - 1
    values = np.where(
        exponent == 0,
        np.ldexp(mantissa, 1 - bias),
        np.ldexp(1 + mantissa, exponent - bias),
    )
    if exponent_bits == 4:
        values[codes & 0x7F == 0x7F] = np.nan
    else:
        top = exponent == (1 << exponent_bits) - 1
        values[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    return np.where(codes < 128, values, -values).astype(np.float32)


FLOAT8 = {"F8_E4M3": float8_values(4), "F8_E5M2": float8_values(5)}


def unscale_sources(sources: Sources, scaled: Scaled) -> dict[str, SourceTensor]:
    """Return the tensors with each matrix of codes as floats, or as our integer type."""
    read = {name: one for name, one in sources.items() if not name.endswith(UNREAD)}
    out = plain_scales(nvfp4_sources(read))
    last = LastConverted()
    for name in [name for name, one in out.items() if one.type in (*FLOAT8, "I8")]:
        ending = next((end for end in SCALES if name + end in out), None)
        codes = out[name]
        if ending is None:
            raise ModelFileError(f"{codes.where}: tensor {name!r} is {codes.type} without a scale")
        if name + ZEROS in out and any(out.pop(name + ZEROS).view()):
            raise ModelFileError(
                f"{codes.where}: tensor {name + ZEROS!r} holds zero points; accepted: zeros"
            )
        scales = _scales(name + ending, out.pop(name + ending), codes, scaled)
        out[name] = _made(codes, scales, scaled.block, last)
    return out


def _scales(name: str, source: SourceTensor, codes: SourceTensor, scaled: Scaled) -> Floats:
    """Return the scales for codes [..., outputs, inputs] as [..., rows, columns] of blocks."""
    if source.type not in VECTOR_TYPES:
        raise ModelFileError(f"{source.where}: tensor {name!r} is {source.type}, not a float")
    found = to_f32(source.view(), TensorType(source.type))
    if not np.isfinite(found).all():
        raise ModelFileError(f"{source.where}: tensor {name!r} holds NaN or infinity")
    *stack, rows, cols = codes.shape if len(codes.shape) > 1 else (1, *codes.shape)
    accepted = [(1, 1), (rows, 1)]
    if scaled.block is not None:
        down, across = scaled.block
        accepted.append((-(-rows // down), -(-cols // across)))
    for shape in accepted:
        if prod(source.shape) == prod(stack) * prod(shape):
            return np.ascontiguousarray(found.reshape(*stack, *shape))
    wanted = ", ".join(str([*stack, *shape]) for shape in accepted)
    raise ModelFileError(
        f"{source.where}: tensor {name!r} is {list(source.shape)} beside codes"
        f" {list(codes.shape)}; accepted: {wanted}"
    )


def _made(
    codes: SourceTensor, scales: Floats, block: tuple[int, int] | None, last: LastConverted
) -> SourceTensor:
    cols, rows = codes.shape[-1], prod(codes.shape[:-1])
    if codes.type == "I8" and scales.shape[-1] == 1 and cols % STORED_ROW_INPUTS == 0:
        return _integers(codes, np.repeat(scales.ravel(), rows // scales.size), last)

    def make() -> memoryview:
        made = _multiplied(codes, scales, block)
        codes.release()
        return made.view(np.uint8).reshape(-1).data.cast("B")

    return _floats(codes.where, codes.shape, make, last)


def _floats(
    where: str, shape: tuple[int, ...], make: Callable[[], memoryview], last: LastConverted
) -> SourceTensor:
    data = Converted(4 * prod(shape), make, last)
    return SourceTensor(where, shape, TensorType.F32, data, data.release)


def _multiplied(codes: SourceTensor, scales: Floats, block: tuple[int, int] | None) -> Floats:
    stored = codes.view()
    if codes.type == "I8":
        values: Floats = np.frombuffer(stored, np.int8).astype(np.float32)
    else:
        values = FLOAT8[str(codes.type)][np.frombuffer(stored, np.uint8)]
    values = values.reshape(*scales.shape[:-2], -1, codes.shape[-1])
    rows, cols = values.shape[-2:]
    if scales.shape[-2:] not in ((1, 1), (rows, 1)):
        assert block is not None
        scales = scales.repeat(block[0], axis=-2)[..., :rows, :]  # the last block may be partial
        scales = scales.repeat(block[1], axis=-1)[..., :cols]
    values *= scales
    return values


def _integers(codes: SourceTensor, scales: Floats, last: LastConverted) -> SourceTensor:
    """Rows of W8A8, with scales of 12 bits less than float32; bfloat16 scales stay exact."""
    rows, cols = len(scales), codes.shape[-1]
    n_bytes = row_bytes(TensorType.W8A8, cols)
    bits = scales.view(np.uint32) + np.uint32(0x800) & np.uint32(0xFFFFF000)

    def make() -> memoryview:
        made = np.empty((rows, n_bytes), np.uint8)
        stored = np.frombuffer(codes.view(), np.uint8).reshape(rows, cols)
        np.bitwise_xor(stored, np.uint8(0x80), out=made[:, :cols])
        made[:, cols:] = bits.view(np.uint8).reshape(rows, 4)
        codes.release()
        return made.reshape(-1).data.cast("B")

    data = Converted(rows * n_bytes, make, last)
    return SourceTensor(codes.where, codes.shape, TensorType.W8A8, data, data.release)


def expand_sources(sources: Sources) -> dict[str, SourceTensor]:
    """Return the tensors with each matrix in bitsandbytes' 4-bit types as floats."""
    states = {
        name[: name.index(STATE)]: source for name, source in sources.items() if STATE in name
    }
    last = LastConverted()
    out = {
        name: one
        for name, one in sources.items()
        if STATE not in name and not name.endswith(NESTED)
    }
    for name, state in states.items():
        if name not in out:
            raise ModelFileError(f"{state.where}: tensor {name!r} is missing beside its state")
        parts = {end: sources[name + end] for end in NESTED if name + end in sources}
        out[name] = _expanded(name, out[name], state, parts, last)
    return out


def _expanded(
    name: str,
    codes: SourceTensor,
    state: SourceTensor,
    parts: Sources,
    last: LastConverted,
) -> SourceTensor:
    where = f"{codes.where}: tensor {name!r}"
    about = Fields(parse_object(bytes(state.view()), where), where)
    shape: Any = about.values.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        raise about.fail("shape", "a list of positive whole numbers")
    block, count = about.integer("blocksize"), prod(shape)
    if codes.type != "U8" or codes.n_bytes != -(-count // 2):
        raise ModelFileError(f"{where} has {codes.n_bytes} bytes; {-(-count // 2)} are needed")
    values = _table(where, parts, ".quant_map", 16)
    n_blocks = -(-count // block)
    if about.is_set("nested_absmax") or ".nested_absmax" in parts:
        scales = _nested(where, about, parts, n_blocks)
    else:
        scales = _table(where, parts, ".absmax", n_blocks)

    def make() -> memoryview:
        pairs = np.frombuffer(codes.view(), np.uint8)
        both = np.stack([pairs >> 4, pairs & 15], axis=1).reshape(-1)[:count]
        made = values[both] * scales.repeat(block)[:count]
        codes.release()
        return made.view(np.uint8).data.cast("B")

    return _floats(codes.where, tuple(shape), make, last)


def _table(where: str, parts: Sources, end: str, size: int) -> Floats:
    source = parts.get(end)
    if source is None or source.type != TensorType.F32 or source.n_bytes != 4 * size:
        raise ModelFileError(f"{where}: {end[1:]} must be {size} values of F32")
    found: Floats = np.frombuffer(source.view(), "<f4")
    if not np.isfinite(found).all():
        raise ModelFileError(f"{where}: {end[1:]} holds NaN or infinity")
    return found


def _nested(where: str, about: Fields, parts: Sources, n_blocks: int) -> Floats:
    """Decode scales that are codes themselves, in blocks of 256 values, plus their mean."""
    codes = parts.get(".absmax")
    if codes is None or codes.type != "U8" or codes.n_bytes != n_blocks:
        raise ModelFileError(f"{where}: absmax must be {n_blocks} values of U8")
    block = about.integer("nested_blocksize")
    values = _table(where, parts, ".nested_quant_map", 256)
    scales = _table(where, parts, ".nested_absmax", -(-n_blocks // block))
    offset = np.float32(about.values.get("nested_offset", 0.0))
    chosen = values[np.frombuffer(codes.view(), np.uint8)]
    made: Floats = chosen * scales.repeat(block)[:n_blocks] + offset
    return made
