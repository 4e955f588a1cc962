"""Storage types of tensors: their numbers, and how many bytes their rows take."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class TensorType(IntEnum):
    """Storage types: GGUF's under GGUF's numbers, ours from 256; equal to C's ``lw_type``."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    Q4_0_4_4 = 31
    Q4_0_4_8 = 32
    Q4_0_8_8 = 33
    TQ1_0 = 34
    TQ2_0 = 35
    IQ4_NL_4_4 = 36
    IQ4_NL_4_8 = 37
    IQ4_NL_8_8 = 38
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42
    CB2 = 258
    CB3 = 259
    CB4 = 260
    T2 = 262
    Q4_G64 = 264
    Q4_G128 = 265
    Q2_G64 = 266
    Q2_G128 = 267
    A4_G32 = 272
    A4_G64 = 273
    A4_G128 = 274
    A8_G32 = 276
    A8_G128 = 278
    FP6 = 280
    W8A8 = 284
    FP4 = 286
    GRID3 = 288
    GRID4 = 292


@dataclass(frozen=True)
class Block:
    """The unit of a storage type: a number of weights in a number of bytes."""

    weights: int
    n_bytes: int


BLOCKS: Mapping[TensorType, Block] = {
    TensorType.F32: Block(1, 4),
    TensorType.F16: Block(1, 2),
    TensorType.BF16: Block(1, 2),
    TensorType.Q4_0: Block(32, 18),
    TensorType.Q8_0: Block(32, 34),
    TensorType.Q6_K: Block(256, 210),
    TensorType.Q4_1: Block(32, 20),
    TensorType.Q5_0: Block(32, 22),
    TensorType.Q5_1: Block(32, 24),
    TensorType.Q2_K: Block(256, 84),
    TensorType.Q3_K: Block(256, 110),
    TensorType.Q4_K: Block(256, 144),
    TensorType.Q5_K: Block(256, 176),
    TensorType.IQ4_NL: Block(32, 18),
    TensorType.IQ4_XS: Block(256, 136),
    TensorType.MXFP4: Block(32, 17),
    TensorType.IQ1_S: Block(256, 50),
    TensorType.IQ1_M: Block(256, 56),
    TensorType.IQ2_XXS: Block(256, 66),
    TensorType.IQ2_XS: Block(256, 74),
    TensorType.IQ2_S: Block(256, 82),
    TensorType.IQ3_XXS: Block(256, 98),
    TensorType.IQ3_S: Block(256, 110),
    TensorType.TQ1_0: Block(256, 54),
    TensorType.TQ2_0: Block(256, 66),
    TensorType.NVFP4: Block(64, 36),
    TensorType.Q1_0: Block(128, 18),
    TensorType.Q2_0: Block(64, 18),
}
# The type in which matrices of a file-only type are held in memory, with equal weights.
HELD: Mapping[TensorType, TensorType] = {
    **dict.fromkeys(
        (
            TensorType.IQ1_S,
            TensorType.IQ1_M,
            TensorType.IQ2_XXS,
            TensorType.IQ2_XS,
            TensorType.IQ2_S,
        ),
        TensorType.GRID3,
    ),
    TensorType.IQ3_XXS: TensorType.GRID4,
    TensorType.IQ3_S: TensorType.GRID4,
    TensorType.TQ1_0: TensorType.Q2_K,
    TensorType.TQ2_0: TensorType.Q2_K,
    TensorType.NVFP4: TensorType.FP4,  # made by lanewise.loading.quantized.nvfp4
    TensorType.Q1_0: TensorType.Q2_G128,
    TensorType.Q2_0: TensorType.Q2_G64,
}


@dataclass(frozen=True)
class StoredRow:
    """The parts of a row of one of our own types: quantizer/FORMAT.md, "Stored rows"."""

    bits: int
    group: int  # inputs that share a scale, and perhaps a zero point
    scale_bytes: int = 2
    has_zeros: bool = False
    has_selectors: bool = False
    has_row_scale: bool = False
    has_table: bool = False  # 16 int8 values stored with the tensor
    has_block_scales: bool = False  # an f16 for each 256 inputs


STORED_ROW_INPUTS = 32  # row sizes are multiples of this
TABLE_BYTES = 16
_CODEBOOK: dict[str, Any] = {
    "group": 32,
    "scale_bytes": 1,
    "has_row_scale": True,
    "has_table": True,
}
STORED_ROWS: Mapping[TensorType, StoredRow] = {
    TensorType.CB2: StoredRow(2, has_selectors=True, **_CODEBOOK),
    TensorType.CB3: StoredRow(3, has_selectors=True, **_CODEBOOK),
    TensorType.CB4: StoredRow(4, **_CODEBOOK),
    TensorType.T2: StoredRow(2, **_CODEBOOK),
    TensorType.Q4_G64: StoredRow(4, 64),
    TensorType.Q4_G128: StoredRow(4, 128),
    TensorType.Q2_G64: StoredRow(2, 64),
    TensorType.Q2_G128: StoredRow(2, 128),
    TensorType.A4_G32: StoredRow(4, 32, has_zeros=True),
    TensorType.A4_G64: StoredRow(4, 64, has_zeros=True),
    TensorType.A4_G128: StoredRow(4, 128, has_zeros=True),
    TensorType.A8_G32: StoredRow(8, 32, has_zeros=True),
    TensorType.A8_G128: StoredRow(8, 128, has_zeros=True),
    TensorType.FP4: StoredRow(4, 16, scale_bytes=1, has_row_scale=True),
    TensorType.FP6: StoredRow(6, 128, scale_bytes=0, has_row_scale=True),
    TensorType.W8A8: StoredRow(8, 128, scale_bytes=0, has_row_scale=True),
    TensorType.GRID3: StoredRow(3, 16, 1, has_table=True, has_block_scales=True),
    TensorType.GRID4: StoredRow(4, 32, 1, has_table=True, has_block_scales=True),
}
MATRIX_TYPES = (*BLOCKS, *STORED_ROWS)
VECTOR_TYPES = (TensorType.F32, TensorType.F16, TensorType.BF16)


def row_bytes(kind: TensorType, cols: int) -> int:
    """Bytes of a row of ``cols`` weights; 0 if the type cannot store such a row."""
    block, row = BLOCKS.get(kind), STORED_ROWS.get(kind)
    if block is not None:
        return 0 if cols % block.weights else cols // block.weights * block.n_bytes
    if row is None or cols % STORED_ROW_INPUTS:
        return 0
    groups = -(-cols // row.group)
    selectors = -(-cols // 128) if row.has_selectors else 0
    supers = 2 * -(-cols // 256) if row.has_block_scales else 4 * row.has_row_scale
    parts = groups * (row.scale_bytes + row.has_zeros) + selectors + supers
    return cols * row.bits // 8 + parts


def has_table(kind: TensorType) -> bool:
    """Return whether tensors of a type have a table of their own."""
    row = STORED_ROWS.get(kind)
    return row is not None and row.has_table


def round_to_f32(value: float) -> float:
    """Round to the nearest float32, as GGUF stores numbers, so both kinds of file agree."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])
