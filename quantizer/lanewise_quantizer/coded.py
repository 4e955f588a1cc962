"""Coded weight types (quantizer/FORMAT.md, "Coded types"): what a matrix of one holds, in numpy."""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.blocks import IQ4_NL_TABLE
from lanewise_quantizer.planes import chained, pack_plane, unpack_plane

SEGMENT = 128  # inputs that share an activation scale, and after which a trellis starts again
SUPER_BLOCK = 256  # inputs that share an f16 super scale
SELECTED = 32  # inputs that share a selector, and so a codebook
TABLE_ENTRIES = 16
TABLE_PEAK = 127
E8M0_LARGEST, E4M3_LARGEST = 252, 126  # times the 12 of MXFP4's table it is still a float
ROW_SCALE_MASK = 0xFFF  # bits of a row's super scale that are zero

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


class Scale(Enum):
    """The stored scale of a group."""

    F16 = auto()
    I8 = auto()  # times the super scale
    NIBBLES = auto()  # low nibble times the super scale; the high one belongs to the minimum
    E8M0 = auto()  # 2^(byte - 128)
    E4M3 = auto()  # a float of 8 bits without a sign, times the super scale
    ONE = auto()  # none: the super scale of the row


LARGEST_SCALES = {Scale.E8M0: E8M0_LARGEST, Scale.E4M3: E4M3_LARGEST}


class Super(Enum):
    """The factor of the scales of a row or of 256 inputs."""

    NONE = auto()
    BLOCK = auto()  # f16 for each 256 inputs
    EIGHTH = auto()  # the same, an eighth of it
    ROW = auto()  # one f32 whose low 12 bits are zero, 8 beside scales in E4M3


class Minimum(Enum):
    """What is subtracted from scale * code."""

    NONE = auto()
    F16 = auto()  # one for each 32 inputs
    U8 = auto()  # byte for each 32 inputs, times the super minimum
    NIBBLES = auto()  # high nibble of the scale's byte, times the super minimum
    ZERO = auto()  # (byte of the group - offset) * scale of the group


class Map(Enum):
    """What turns a code into the integer that is multiplied."""

    OFFSET = auto()  # code - offset
    TABLE = auto()  # table[selector << bits | code]
    TRELLIS = auto()  # table[code << 2 | code before, see chained]; 0 before a segment's first
    FLOAT = auto()  # sixteen times a float: exponent and sign in the first plane, then mantissa


@dataclass(frozen=True)
class CodedType:
    """One integer weight type: a row of native/src/kernels/formats.inc."""

    name: str
    id: int  # GGUF's below 256
    low: int  # bits of a code in the first plane
    high: int  # bits in the second plane
    group: int  # inputs that share a scale
    scale: Scale
    super: Super
    minimum: Minimum
    map: Map
    offset: int = 0
    selector_bits: int = 0
    table: tuple[int, ...] | None = None  # of types that have one for all models

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.low + self.high

    @property
    def needs_table(self) -> bool:
        """Whether each matrix comes with a table of its own."""
        return self.map in (Map.TABLE, Map.TRELLIS) and self.table is None

    @property
    def minimum_group(self) -> int:
        """Inputs for which the product adds one minimum: 32, or the group if that is less."""
        return min(self.group, SELECTED)

    @property
    def has_super_minimum(self) -> bool:
        """Whether minimums are multiplied by an f16 for each 256 inputs."""
        return self.minimum in (Minimum.U8, Minimum.NIBBLES)

    def sections(self, cols: int) -> dict[str, tuple[str, int]]:
        """The parts of a stored row in order: field to numpy type and number of elements."""
        groups, blocks = -(-cols // self.group), -(-cols // SUPER_BLOCK)
        parts = {"low": ("u1", cols * self.low // 8), "high": ("u1", cols * self.high // 8)}
        kinds = {Scale.F16: "<f2", Scale.I8: "i1"}
        kind = kinds.get(self.scale, "u1")
        parts["scales"] = (kind, 0 if self.scale is Scale.ONE else groups)
        if self.minimum is Minimum.F16:
            parts["minimums"] = ("<f2", cols // SELECTED)
        elif self.minimum is Minimum.U8:
            parts["minimums"] = ("u1", cols // SELECTED)
        elif self.minimum is Minimum.ZERO:
            parts["minimums"] = ("u1", groups)
        if self.selector_bits:
            parts["selectors"] = ("u1", -(-cols // SEGMENT))
        if self.super is not Super.NONE:
            parts["super_scales"] = ("<f4", 1) if self.super is Super.ROW else ("<f2", blocks)
        if self.has_super_minimum:
            parts["super_minimums"] = ("<f2", blocks)
        return parts

    def row_bytes(self, cols: int) -> int:
        """Bytes of a stored row of ``cols`` inputs, a multiple of 32."""
        return sum(np.dtype(kind).itemsize * n for kind, n in self.sections(cols).values())

    def bits_per_weight(self, cols: int) -> float:
        """Bits per weight of rows of ``cols`` inputs, scales and all."""
        return 8 * self.row_bytes(cols) / cols


def float_parts(code: int) -> tuple[int, int]:
    """The integers ``high`` and ``low`` of a float's code: it is (4 * high + low) / 16.

    The code is the exponent (3 bits), the sign and the mantissa, from the lowest bit on.
    """
    exponent, sign, mantissa = code & 7, -1 if code & 8 else 1, code >> 4
    if exponent < 3:
        return sign * exponent, sign * mantissa * (2 if exponent == 2 else 1)
    return sign * (4 + mantissa << exponent - 3), 0


def e4m3_values(codes: Array) -> Floats:
    """The floats of E4M3 codes without a sign."""
    exponents, mantissas = (codes >> 3).astype(np.int32), (codes & 7).astype(np.float32)
    values: Floats = np.where(
        exponents == 0, np.ldexp(mantissas, -9), np.ldexp(8 + mantissas, exponents - 10)
    )
    return values


MXFP4_TABLE = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # E2M1, doubled

_F16, _I8 = (Scale.F16, Super.NONE), (Scale.I8, Super.BLOCK)
_ROW, _ROW_ALONE = (Scale.I8, Super.ROW), (Scale.ONE, Super.ROW)
_NO, _OFFSET, _TABLE = Minimum.NONE, Map.OFFSET, Map.TABLE

CODED_TYPES: dict[str, CodedType] = {
    kind.name: kind
    for kind in (
        # Types with kernels of their own, whose rows are always GGUF's blocks.
        CodedType("q4_0", 2, 4, 0, 32, *_F16, _NO, _OFFSET, 8),
        CodedType("q8_0", 8, 8, 0, 32, *_F16, _NO, _OFFSET, 128),
        CodedType("q6_k", 14, 4, 2, 16, *_I8, _NO, _OFFSET, 32),
        # GGUF's other types.
        CodedType("q4_1", 3, 4, 0, 32, *_F16, Minimum.F16, _OFFSET),
        CodedType("q5_0", 6, 4, 1, 32, *_F16, _NO, _OFFSET, 16),
        CodedType("q5_1", 7, 4, 1, 32, *_F16, Minimum.F16, _OFFSET),
        CodedType("q2_k", 10, 2, 0, 16, Scale.NIBBLES, Super.BLOCK, Minimum.NIBBLES, _OFFSET),
        CodedType("q3_k", 11, 2, 1, 16, *_I8, _NO, _OFFSET, 4),
        CodedType("q4_k", 12, 4, 0, 32, *_I8, Minimum.U8, _OFFSET),
        CodedType("q5_k", 13, 4, 1, 32, *_I8, Minimum.U8, _OFFSET),
        CodedType("iq4_nl", 20, 4, 0, 32, *_F16, _NO, _TABLE, table=IQ4_NL_TABLE),
        CodedType("iq4_xs", 23, 4, 0, 32, *_I8, _NO, _TABLE, table=IQ4_NL_TABLE),
        CodedType("mxfp4", 39, 4, 0, 32, Scale.E8M0, Super.NONE, _NO, _TABLE, table=MXFP4_TABLE),
        # Ours: shared codebooks, a trellis, symmetric codes in larger groups, zero points.
        CodedType("cb2", 258, 2, 0, 32, *_ROW, _NO, _TABLE, selector_bits=2),
        CodedType("cb3", 259, 2, 1, 32, *_ROW, _NO, _TABLE, selector_bits=1),
        CodedType("cb4", 260, 4, 0, 32, *_ROW, _NO, _TABLE),
        CodedType("t2", 262, 2, 0, 32, *_ROW, _NO, Map.TRELLIS),
        CodedType("q4_g64", 264, 4, 0, 64, *_F16, _NO, _OFFSET, 8),
        CodedType("q4_g128", 265, 4, 0, 128, *_F16, _NO, _OFFSET, 8),
        CodedType("a4_g32", 272, 4, 0, 32, *_F16, Minimum.ZERO, _OFFSET),
        CodedType("a4_g64", 273, 4, 0, 64, *_F16, Minimum.ZERO, _OFFSET),
        CodedType("a4_g128", 274, 4, 0, 128, *_F16, Minimum.ZERO, _OFFSET),
        CodedType("a8_g32", 276, 8, 0, 32, *_F16, Minimum.ZERO, _OFFSET, 128),
        CodedType("a8_g128", 278, 8, 0, 128, *_F16, Minimum.ZERO, _OFFSET, 128),
        # One scale for a row: floats of six bits, integers of eight.
        CodedType("fp6", 280, 4, 2, 128, *_ROW_ALONE, _NO, Map.FLOAT),
        CodedType("w8a8", 284, 8, 0, 128, *_ROW_ALONE, _NO, _OFFSET, 128),
    )
}
# Types that some types of other programs' files are held in, and nothing is quantized to.
HELD_TYPES: dict[str, CodedType] = {
    "q2_g64": CodedType("q2_g64", 266, 2, 0, 64, *_F16, _NO, _OFFSET, 1),
    "q2_g128": CodedType("q2_g128", 267, 2, 0, 128, *_F16, _NO, _OFFSET, 1),
    "fp4": CodedType("fp4", 286, 4, 0, 16, Scale.E4M3, Super.ROW, _NO, _TABLE, table=MXFP4_TABLE),
    "grid3": CodedType("grid3", 288, 2, 1, 16, Scale.I8, Super.EIGHTH, _NO, _TABLE),
    "grid4": CodedType("grid4", 292, 4, 0, 32, Scale.I8, Super.EIGHTH, _NO, _TABLE),
}


def coded_type(name: str) -> CodedType:
    """Return the type of this name."""
    return CODED_TYPES[name] if name in CODED_TYPES else HELD_TYPES[name]


@dataclass(frozen=True)
class CodedMatrix:
    """A matrix [rows, cols] of one coded type, its parts unpacked.

    A weight is ``scale * mapped code - minimum``. What the type does not have is None.
    """

    type: CodedType
    codes: Array  # u8 [rows, cols]
    scales: Array  # f16, i8 or u8 [rows, ceil(cols / group)], or u8 [rows, 0]
    minimums: Array | None = None  # f16 or u8 [rows, cols / 32]; zero points: u8, as scales
    selectors: Array | None = None  # u8 [rows, cols / 32]
    super_scales: Array | None = None  # f16 [rows, ceil(cols / 256)], or f32 [rows]
    super_minimums: Array | None = None  # f16 [rows, ceil(cols / 256)]
    table: Array | None = None  # i8 [16]

    @property
    def rows(self) -> int:
        """Outputs."""
        return int(self.codes.shape[0])

    @property
    def cols(self) -> int:
        """Inputs."""
        return int(self.codes.shape[1])

    def take(self, rows: npt.NDArray[np.intp]) -> Self:
        """Some of the rows."""

        def taken(name: str) -> Array | None:
            part: Array | None = getattr(self, name)
            return None if part is None else part[rows]

        names = ("minimums", "selectors", "super_scales", "super_minimums")
        others = {name: taken(name) for name in names}
        codes, scales = self.codes[rows], self.scales[rows]
        return type(self)(self.type, codes, scales, table=self.table, **others)

    def mapped_codes(self) -> npt.NDArray[np.int16]:
        """The integers [rows, cols] that are multiplied with activations."""
        if self.type.map is Map.OFFSET:
            return self.codes.astype(np.int16) - np.int16(self.type.offset)
        if self.type.map is Map.FLOAT:
            (high, factor), (low, _) = self.passes()
            return high * np.int16(factor) + low
        table = np.asarray(self.type.table if self.table is None else self.table, np.int16)
        index = self.codes
        if self.type.map is Map.TRELLIS:
            chain = chained(index)
            previous = np.zeros_like(chain)
            previous[:, 1:] = chain[:, :-1]
            previous[:, ::SEGMENT] = 0
            index = chained(chain << 2 | previous)
        elif self.selectors is not None:
            index = np.repeat(self.selectors << self.type.bits, SELECTED, axis=1) | index
        return table[index]

    def passes(self) -> list[tuple[npt.NDArray[np.int16], int]]:
        """What the product multiplies: codes [rows, cols] and the factor of their scales.

        Two for each weight where one would not fit eight bits; a segment then comes twice.
        """
        if self.type.map is not Map.FLOAT:
            return [(self.mapped_codes(), 1)]
        parts = [float_parts(code) for code in range(1 << self.type.bits)]
        high, low = np.array(parts, np.int16).T
        return [(high[self.codes], 4), (low[self.codes], 1)]

    def group_scales(self) -> Floats:
        """The scales [rows, ceil(cols / group)], exact."""
        if self.type.scale is Scale.ONE:
            assert self.super_scales is not None
            whole: Floats = self.super_scales.astype(np.float32)[:, None]
            return whole.repeat(-(-self.cols // self.type.group), axis=1)
        if self.type.scale is Scale.E8M0:
            powers: Floats = np.ldexp(np.float32(1), self.scales.astype(np.int32) - 128)
            return powers
        numbers = self.scales & 15 if self.type.scale is Scale.NIBBLES else self.scales
        if self.type.scale is Scale.E4M3:
            numbers = e4m3_values(self.scales)
        factors = self.super_scales
        if self.type.super is Super.EIGHTH:
            assert factors is not None
            factors = factors.astype(np.float32) * np.float32(0.125)
        return self._times_super(numbers.astype(np.float32), factors, self.type.group)

    def group_minimums(self) -> Floats | None:
        """What is subtracted [rows, cols / 32], or [rows, cols / 16] with groups of 16; exact."""
        if self.type.minimum is Minimum.NONE:
            return None
        if self.type.minimum is Minimum.NIBBLES:
            numbers = (self.scales >> 4).astype(np.float32)
            return self._times_super(numbers, self.super_minimums, self.type.group)
        assert self.minimums is not None
        numbers = self.minimums.astype(np.float32)
        if self.type.minimum is Minimum.ZERO:
            numbers = (numbers - np.float32(self.type.offset)) * self.group_scales()
            repeated = np.repeat(numbers, self.type.group // SELECTED, axis=1)
            return np.ascontiguousarray(repeated[:, : self.cols // SELECTED])
        return self._times_super(numbers, self.super_minimums, SELECTED)

    def _times_super(self, numbers: Floats, factors: Array | None, group: int) -> Floats:
        if factors is None:
            return numbers
        wide: Floats = factors.astype(np.float32)
        if wide.ndim == 1:
            return numbers * wide[:, None]
        return numbers * np.repeat(wide, SUPER_BLOCK // group, axis=1)[:, : numbers.shape[1]]

    def decode(self) -> Floats:
        """The weights [rows, cols]: scale * code, rounded once, minus the minimum, rounded once.

        GGUF's types come out as its reference implementation has them.
        """
        weights = self.mapped_codes().astype(np.float32)
        weights *= np.repeat(self.group_scales(), self.type.group, axis=1)[:, : self.cols]
        minimums = self.group_minimums()
        if minimums is not None:
            weights -= np.repeat(minimums, self.type.minimum_group, axis=1)
        return weights

    def to_rows(self) -> npt.NDArray[np.uint8]:
        """The stored rows [rows, row_bytes]."""
        kind = self.type
        parts: dict[str, Array | None] = {
            "low": pack_plane(self.codes & ((1 << kind.low) - 1), kind.low),
            "high": pack_plane(self.codes >> kind.low, kind.high) if kind.high else None,
            "scales": self.scales,
            "minimums": self.minimums,
            "super_scales": self.super_scales,
            "super_minimums": self.super_minimums,
        }
        if self.selectors is not None:
            missing = -self.selectors.shape[1] % (SEGMENT // SELECTED)
            parts["selectors"] = pack_plane(np.pad(self.selectors, ((0, 0), (0, missing))), 2)
        out = np.empty((self.rows, kind.row_bytes(self.cols)), np.uint8)
        at = 0
        for name, (dtype, count) in kind.sections(self.cols).items():
            size = count * np.dtype(dtype).itemsize
            part = parts[name]
            if part is not None:
                values = np.ascontiguousarray(part.reshape(self.rows, count), dtype)
                out[:, at : at + size] = values.view(np.uint8)
            at += size
        return out

    @staticmethod
    def from_rows(
        kind: CodedType, data: Array, cols: int, table: Array | None = None
    ) -> "CodedMatrix":
        """The matrix of stored rows [rows, row_bytes] of bytes."""
        check_cols(kind, cols)
        if data.ndim != 2 or data.dtype != np.uint8 or data.shape[1] != kind.row_bytes(cols):
            raise ValueError(
                f"{kind.name}: rows are {data.dtype} {list(data.shape)}; needed:"
                f" uint8 [rows, {kind.row_bytes(cols)}] for {cols} inputs"
            )
        parts: dict[str, Array] = {}
        at = 0
        for name, (dtype, count) in kind.sections(cols).items():
            size = count * np.dtype(dtype).itemsize
            parts[name] = np.ascontiguousarray(data[:, at : at + size]).view(dtype)
            at += size
        codes: Array = unpack_plane(parts.pop("low"), kind.low)
        high = parts.pop("high")
        if kind.high:
            codes = codes | unpack_plane(high, kind.high) << kind.low
        if "selectors" in parts:
            parts["selectors"] = unpack_plane(parts["selectors"], 2)[:, : cols // SELECTED]
        if kind.super is Super.ROW:
            parts["super_scales"] = parts["super_scales"][:, 0]
        return CodedMatrix(kind, codes, table=table, **parts).validate()

    def slice_rows(self, start: int, stop: int) -> "CodedMatrix":
        """Rows ``start`` to ``stop``, as views."""
        names = ("codes", "scales", "minimums", "selectors", "super_scales", "super_minimums")
        parts = {name: getattr(self, name) for name in names}
        return replace(self, **{k: v[start:stop] for k, v in parts.items() if v is not None})

    def validate(self) -> "CodedMatrix":
        """Return self if every part is what the type needs; else ValueError names the part."""
        if self.codes.ndim != 2:
            raise ValueError(f"{self.type.name}: codes have shape {list(self.codes.shape)}")
        check_cols(self.type, self.cols)
        sections = self.type.sections(self.cols)
        self._check("codes", "u1", (self.rows, self.cols), 1 << self.type.bits)
        for name in ("scales", "minimums", "super_scales", "super_minimums"):
            kind, count = sections.get(name, ("", 0))
            is_row = name == "super_scales" and self.type.super is Super.ROW
            largest = LARGEST_SCALES.get(self.type.scale, 255) if name == "scales" else 255
            shape = (self.rows,) if is_row else (self.rows, count)
            self._check(name, kind, shape, largest + 1)
        selectors = "u1" if self.type.selector_bits else ""
        places = (self.rows, self.cols // SELECTED)
        self._check("selectors", selectors, places, 1 << self.type.selector_bits)
        if self.type.needs_table:
            self._check("table", "i1", (TABLE_ENTRIES,))
            assert self.table is not None
            if (self.table == -128).any():
                raise ValueError(f"{self.type.name}: table holds -128; accepted: -127 to 127")
        if self.type.super is Super.ROW:
            assert self.super_scales is not None
            bits = np.ascontiguousarray(self.super_scales).view(np.uint32)
            zeros = 8 if self.type.scale is Scale.E4M3 else 12
            if (bits & ((1 << zeros) - 1)).any():
                raise ValueError(
                    f"{self.type.name}: super_scales: the low {zeros} bits must be zero"
                )
        return self

    def _check(self, name: str, dtype: str, shape: tuple[int, ...], limit: int = 256) -> None:
        part: Array | None = getattr(self, name)
        where = f"{self.type.name}: {name}"
        if not dtype:
            if part is not None:
                raise ValueError(f"{where}: given, but this type has none")
            return
        if part is None or part.dtype != np.dtype(dtype) or part.shape != shape:
            found = "missing" if part is None else f"{part.dtype} {list(part.shape)}"
            raise ValueError(f"{where}: {found}; needed: {np.dtype(dtype)} {list(shape)}")
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            row = int(np.flatnonzero(~np.isfinite(part).reshape(self.rows, -1).all(axis=1))[0])
            raise ValueError(f"{where}: NaN or infinity in row {row}")
        if limit < 256 and part.size and part.max() >= limit:
            raise ValueError(f"{where}: {part.max()}; accepted: 0 to {limit - 1}")


def check_cols(kind: CodedType, cols: int) -> None:
    """Raise ValueError unless rows of the type can have ``cols`` inputs."""
    if cols <= 0 or cols % SELECTED:
        raise ValueError(f"{kind.name}: rows of {cols} inputs; accepted: multiples of {SELECTED}")


def round_row_scale(values: Array) -> Floats:
    """Round to the nearest f32 whose low 12 bits are zero: what a row's super scale can be."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    half = np.uint32((ROW_SCALE_MASK + 1) // 2)
    return ((bits + half) & np.uint32(~ROW_SCALE_MASK & 0xFFFFFFFF)).view(np.float32)
