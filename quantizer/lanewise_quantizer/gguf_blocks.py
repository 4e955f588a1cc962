"""GGUF's blocks of every integer type there and back; no bit of a block is lost.

The order of codes within a block follows one rule: ``width`` bytes hold the lowest bits of the
first ``width`` inputs, above them the bits of the next, and so on; then come the next bytes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise_quantizer.coded import CODED_TYPES, CodedMatrix, CodedType

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Layout:
    """A block: its fields in order, and the widths of its low and high codes."""

    inputs: int
    fields: tuple[tuple[str, str, int], ...]  # name, numpy type, elements
    low_width: int
    high_width: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of a block."""
        return np.dtype([(name, kind, (n,)) for name, kind, n in self.fields])


_D, _M = ("d", "<f2", 1), ("m", "<f2", 1)
_K_SCALES = ("scales", "u1", 12)
LAYOUTS: dict[str, Layout] = {
    "q4_0": Layout(32, (_D, ("low", "u1", 16)), 16),
    "q4_1": Layout(32, (_D, _M, ("low", "u1", 16)), 16),
    "q5_0": Layout(32, (_D, ("high", "u1", 4), ("low", "u1", 16)), 16, 1),
    "q5_1": Layout(32, (_D, _M, ("high", "u1", 4), ("low", "u1", 16)), 16, 1),
    "q8_0": Layout(32, (_D, ("low", "u1", 32)), 32),
    "q2_k": Layout(256, (("scales", "u1", 16), ("low", "u1", 64), _D, _M), 32),
    "q3_k": Layout(256, (("high", "u1", 32), ("low", "u1", 64), _K_SCALES, _D), 32, 32),
    "q4_k": Layout(256, (_D, _M, _K_SCALES, ("low", "u1", 128)), 32),
    "q5_k": Layout(256, (_D, _M, _K_SCALES, ("high", "u1", 32), ("low", "u1", 128)), 32, 32),
    "q6_k": Layout(256, (("low", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), _D), 64, 32),
    "iq4_nl": Layout(32, (_D, ("low", "u1", 16)), 16),
    "iq4_xs": Layout(
        256, (_D, ("scales_high", "<u2", 1), ("scales_low", "u1", 4), ("low", "u1", 128)), 16
    ),
    "mxfp4": Layout(32, (("scales", "u1", 1), ("low", "u1", 16)), 16),
}


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
    codes: Array = _spread(blocks["low"], kind.low, layout.low_width)
    if kind.high:
        codes |= _spread(blocks["high"], kind.high, layout.high_width) << np.uint8(kind.low)
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
    blocks["low"] = _gather(codes & np.uint8((1 << kind.low) - 1), kind.low, layout.low_width)
    if kind.high:
        blocks["high"] = _gather(codes >> np.uint8(kind.low), kind.high, layout.high_width)
    for name, part in _encode_scales(matrix).items():
        blocks[name] = part.reshape(rows, n_blocks, -1)
    return blocks.view(np.uint8)


def _check_cols(kind: CodedType, cols: int) -> None:
    inputs = LAYOUTS[kind.name].inputs
    if cols <= 0 or cols % inputs:
        raise ValueError(f"{kind.name}: rows of {cols} inputs; accepted: multiples of {inputs}")


def _spread(data: Bytes, bits: int, width: int) -> Bytes:
    """Codes [..., n] of ``bits`` each from bytes [..., n * bits / 8]."""
    parts = data.reshape(*data.shape[:-1], -1, 1, width)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes: Bytes = parts >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(*data.shape[:-1], -1)


def _gather(codes: Bytes, bits: int, width: int) -> Bytes:
    """What :func:`_spread` undoes."""
    parts = codes.reshape(*codes.shape[:-1], -1, 8 // bits, width)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    joined: Bytes = np.bitwise_or.reduce(parts << shifts, axis=-2)
    return joined.reshape(*codes.shape[:-1], -1)


def _decode_scales(kind: CodedType, blocks: Array) -> dict[str, Array]:
    """The fields of a CodedMatrix besides its codes, [rows, blocks, n] each."""
    if kind.name == "mxfp4":
        return {"scales": blocks["scales"].copy()}
    d = blocks["d"].copy()
    if kind.name in ("q4_1", "q5_1"):  # GGUF adds its minimum
        return {"scales": d, "minimums": -blocks["m"]}
    if kind.name == "q2_k":
        minimum = blocks["m"].copy()
        return {"scales": blocks["scales"].copy(), "super_scales": d, "super_minimums": minimum}
    if kind.name == "q6_k":
        return {"scales": blocks["scales"].copy(), "super_scales": d}
    if kind.name == "q3_k":
        return {"scales": _decode_q3_scales(blocks["scales"]), "super_scales": d}
    if kind.name == "iq4_xs":
        low = _spread(blocks["scales_low"], 4, 1)
        high = blocks["scales_high"] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
        numbers = (low | high.astype(np.uint8) << 4).astype(np.int8) - np.int8(32)
        return {"scales": numbers, "super_scales": d}
    if kind.name in ("q4_k", "q5_k"):
        scales, minimums = _decode_k_scales(blocks["scales"])
        supers = {"super_scales": d, "super_minimums": blocks["m"].copy()}
        return {"scales": scales.astype(np.int8), "minimums": minimums, **supers}
    return {"scales": d}


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


def _decode_k_scales(q: Bytes) -> tuple[Bytes, Bytes]:
    """8 scales and 8 minimums of six bits from the 12 bytes of Q4_K and Q5_K."""
    first, second, third = q[..., :4], q[..., 4:8], q[..., 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minimums = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    return scales, minimums


def _encode_k_scales(scales: Bytes, minimums: Array) -> Bytes:
    if minimums.max(initial=0) > 63:
        raise ValueError(f"minimums up to {minimums.max()}; accepted in a block: 0 to 63")
    s, m = scales.reshape(len(scales), -1, 2, 4), minimums.reshape(len(minimums), -1, 2, 4)
    first = s[:, :, 0] | s[:, :, 1] >> 4 << 6
    second = m[:, :, 0] | m[:, :, 1] >> 4 << 6
    third = s[:, :, 1] & 15 | (m[:, :, 1] & 15) << 4
    return np.concatenate([first, second, third], axis=-1)


def _decode_q3_scales(q: Bytes) -> npt.NDArray[np.int8]:
    """16 scales from the 12 bytes of Q3_K: low four bits in the first eight, the rest above."""
    low = _spread(q[..., :8], 4, 8)
    high = _spread(q[..., 8:], 2, 4)
    return (low | high << 4).astype(np.int8) - np.int8(32)


def _encode_q3_scales(scales: Bytes) -> Bytes:
    numbers = scales.reshape(len(scales), -1, 16)
    low, high = _gather(numbers & np.uint8(15), 4, 8), _gather(numbers >> np.uint8(4), 2, 4)
    return np.concatenate([low, high], axis=-1)


def gguf_types() -> list[CodedType]:
    """The types that have blocks."""
    return [CODED_TYPES[name] for name in LAYOUTS]
