"""GGUF's blocks of every integer type there and back; no bit of a block is lost."""

from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.blocks import LAYOUTS as OF_GGUF
from lanewise.loading.base.blocks import Layout, numbers_of
from lanewise.loading.base.formats import TensorType
from lanewise_quantizer.coded import CODED_TYPES, CodedMatrix, CodedType, Minimum, Scale, Super

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

LAYOUTS = {kind.name.lower(): layout for kind, layout in OF_GGUF.items()}
LAYOUTS["mxfp4"] = Layout((("scales", "u1", 1), ("low", "u1", 16)), (4, 16))


def block_inputs(kind: CodedType) -> int:
    """Inputs of one block."""
    return LAYOUTS[kind.name].inputs


def block_row_bytes(kind: CodedType, cols: int) -> int:
    """Bytes of a row of ``cols`` inputs."""
    layout = LAYOUTS[kind.name]
    return cols // layout.inputs * layout.dtype.itemsize


def decode_blocks(kind: CodedType, data: Array, cols: int) -> CodedMatrix:
    """The matrix in rows [rows, bytes of a row] of blocks."""
    layout = LAYOUTS[kind.name]
    _check_cols(kind, cols)
    if data.ndim != 2 or data.dtype != np.uint8 or data.shape[1] != block_row_bytes(kind, cols):
        raise ValueError(
            f"{kind.name}: rows are {data.dtype} {list(data.shape)}; needed:"
            f" uint8 [rows, {block_row_bytes(kind, cols)}] for {cols} inputs"
        )
    rows = data.shape[0]
    blocks = np.ascontiguousarray(data).view(layout.dtype)  # [rows, blocks of a row]
    codes = layout.codes(blocks)
    if kind.name == "q8_0":
        codes ^= 128
    parts = {name: part.reshape(rows, -1) for name, part in _decode_scales(kind, blocks).items()}
    return CodedMatrix(kind, codes.reshape(rows, cols), **parts).validate()


def encode_blocks(matrix: CodedMatrix) -> Bytes:
    """The rows [rows, bytes of a row] of blocks."""
    kind = matrix.type
    layout = LAYOUTS.get(kind.name)
    if layout is None:
        raise ValueError(f"{kind.name}: no type of GGUF; accepted: {', '.join(LAYOUTS)}")
    _check_cols(kind, matrix.cols)
    rows, n_blocks = matrix.rows, matrix.cols // layout.inputs
    blocks = np.zeros((rows, n_blocks), layout.dtype)
    codes = matrix.codes.reshape(rows, n_blocks, layout.inputs)
    if kind.name == "q8_0":
        codes = codes ^ 128
    blocks["low"] = _gather(codes & np.uint8((1 << kind.low) - 1), *layout.low)
    if kind.high:
        blocks["high"] = _gather(codes >> np.uint8(kind.low), *layout.high)
    for name, part in _encode_scales(matrix).items():
        blocks[name] = part.reshape(rows, n_blocks, -1)
    return blocks.view(np.uint8)


def _check_cols(kind: CodedType, cols: int) -> None:
    inputs = LAYOUTS[kind.name].inputs
    if cols <= 0 or cols % inputs:
        raise ValueError(f"{kind.name}: rows of {cols} inputs; accepted: multiples of {inputs}")


def _gather(codes: Bytes, bits: int, width: int) -> Bytes:
    """Bytes of codes, in the order that :mod:`lanewise.loading.base.blocks` takes them out."""
    parts = codes.reshape(*codes.shape[:-1], -1, 8 // bits, width)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    joined: Bytes = np.bitwise_or.reduce(parts << shifts, axis=-2)
    return joined.reshape(*codes.shape[:-1], -1)


def _decode_scales(kind: CodedType, blocks: Array) -> dict[str, Array]:
    """The fields of a CodedMatrix besides its codes, [rows, blocks, n] each."""
    if kind.name == "mxfp4":
        return {"scales": blocks["scales"].copy()}
    d = blocks["d"].copy()
    if kind.minimum is Minimum.F16:  # which GGUF adds
        return {"scales": d, "minimums": -blocks["m"]}
    if kind.super is Super.NONE:
        return {"scales": d}
    scales, minimums = numbers_of(TensorType(kind.id), blocks)
    if kind.scale is Scale.NIBBLES:
        scales, minimums = blocks["scales"].copy(), None
    parts = {"scales": scales, "super_scales": d}
    if minimums is not None:
        parts["minimums"] = minimums
    if kind.has_super_minimum:
        parts["super_minimums"] = blocks["m"].copy()
    return parts


def _encode_scales(matrix: CodedMatrix) -> dict[str, Array]:
    """The fields of a block besides its codes, [rows, blocks * n] each."""
    name, scales = matrix.type.name, matrix.scales
    if name == "mxfp4":
        return {"scales": scales}
    if name in ("q4_1", "q5_1"):
        assert matrix.minimums is not None
        return {"d": scales, "m": -matrix.minimums}
    if matrix.super_scales is None:
        return {"d": scales}
    out: dict[str, Array] = {"d": matrix.super_scales}
    if matrix.super_minimums is not None:
        out["m"] = matrix.super_minimums
    if name in ("q2_k", "q6_k"):
        return out | {"scales": scales}
    if name == "q3_k":
        return out | {"scales": _encode_q3_scales(_six_bits(name, scales, 32))}
    if name == "iq4_xs":
        numbers = _six_bits(name, scales, 32).reshape(matrix.rows, -1, 8)
        high = (numbers >> 4).astype(np.uint16) << np.arange(0, 16, 2, dtype=np.uint16)
        low = _gather(numbers & np.uint8(15), 4, 1)
        return out | {"scales_high": np.bitwise_or.reduce(high, axis=-1), "scales_low": low}
    assert matrix.minimums is not None
    return out | {"scales": _encode_k_scales(_six_bits(name, scales, 0), matrix.minimums)}


def _six_bits(name: str, scales: Array, offset: int) -> Bytes:
    """Scales as the six bits that a block has for them."""
    low, high = int(scales.min(initial=0)), int(scales.max(initial=0))
    if low < -offset or high >= 64 - offset:
        accepted = f"accepted in a block: {-offset} to {63 - offset}"
        raise ValueError(f"{name}: scales from {low} to {high}; {accepted}")
    return (scales.astype(np.int16) + offset).astype(np.uint8)


def _encode_k_scales(scales: Bytes, minimums: Array) -> Bytes:
    if minimums.max(initial=0) > 63:
        raise ValueError(f"minimums up to {minimums.max()}; accepted in a block: 0 to 63")
    s, m = scales.reshape(len(scales), -1, 2, 4), minimums.reshape(len(minimums), -1, 2, 4)
    first = s[:, :, 0] | s[:, :, 1] >> 4 << 6
    second = m[:, :, 0] | m[:, :, 1] >> 4 << 6
    third = s[:, :, 1] & 15 | (m[:, :, 1] & 15) << 4
    return np.concatenate([first, second, third], axis=-1)


def _encode_q3_scales(scales: Bytes) -> Bytes:
    numbers = scales.reshape(len(scales), -1, 16)
    low, high = _gather(numbers & np.uint8(15), 4, 8), _gather(numbers >> np.uint8(4), 2, 4)
    return np.concatenate([low, high], axis=-1)


def gguf_types() -> list[CodedType]:
    """The types that have blocks."""
    return [CODED_TYPES[name] for name in LAYOUTS]
