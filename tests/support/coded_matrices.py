"""Random matrices of every coded type, and their weights by the plainest reading of FORMAT.md."""

import numpy as np

from lanewise_quantizer.coded import (
    CODED_TYPES,
    SELECTED,
    CodedMatrix,
    CodedType,
    Map,
    Minimum,
    Scale,
    Super,
    round_row_scale,
)

TABLE = np.array([-54, -5, 62, 19, 127, -40, 8, 54, 3, 54, -33, -79, 30, -104, 88, -21], np.int8)
EVERY_TYPE = [*CODED_TYPES.values()]
# A width that no block of 256 and no group of 64 divides, which only stored rows can have.
ODD_COLS = 256 + 128 + 32


def random_matrix(kind: CodedType, rows: int, cols: int, rng: np.random.Generator) -> CodedMatrix:
    """A valid matrix whose every field is random over its whole range, zero scales included."""

    def halves(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 2)).astype(np.float16)

    groups, blocks = -(-cols // kind.group), -(-cols // 256)
    scales = {
        Scale.F16: lambda: halves(rows, groups),
        Scale.I8: lambda: rng.integers(-128, 128, (rows, groups)).astype(np.int8),
        Scale.NIBBLES: lambda: rng.integers(0, 256, (rows, groups)).astype(np.uint8),
        Scale.E8M0: lambda: rng.integers(0, 253, (rows, groups)).astype(np.uint8),
        Scale.ONE: lambda: np.zeros((rows, 0), np.uint8),
    }[kind.scale]()
    minimums = None
    if kind.minimum is Minimum.F16:
        minimums = halves(rows, cols // 32)
    elif kind.minimum in (Minimum.U8, Minimum.ZERO):
        n = cols // 32 if kind.minimum is Minimum.U8 else groups
        minimums = rng.integers(0, 1 << kind.bits, (rows, n)).astype(np.uint8)
    supers = None
    if kind.super is Super.ROW:
        supers = round_row_scale(rng.standard_normal(rows))
    elif kind.super is Super.BLOCK:
        supers = halves(rows, blocks)
    return CodedMatrix(
        kind,
        codes=rng.integers(0, 1 << kind.bits, (rows, cols)).astype(np.uint8),
        scales=scales,
        minimums=minimums,
        selectors=rng.integers(0, 1 << kind.selector_bits, (rows, cols // SELECTED)).astype(
            np.uint8
        )
        if kind.selector_bits
        else None,
        super_scales=supers,
        super_minimums=halves(rows, blocks) if kind.has_super_minimum else None,
        table=TABLE if kind.needs_table else None,
    ).validate()


def small_float(code: int) -> float:
    """E3M2: bias 3, the lowest exponent is subnormal, no infinities."""
    exponent, sign, mantissa = code & 7, code >> 3 & 1, (code >> 4) / 4
    size = mantissa * 2.0**-2 if exponent == 0 else (1 + mantissa) * 2.0 ** (exponent - 3)
    return -size if sign else size


def plain_row(kind: CodedType, row: bytes, cols: int, table: np.ndarray | None) -> list[float]:
    """The weights of one stored row, one at a time, straight from the text of FORMAT.md."""

    def half(at: int) -> np.float32:
        return np.float32(np.frombuffer(row, "<f2", 1, at)[0])

    def signed(at: int) -> int:
        return row[at] - 256 if row[at] > 127 else row[at]

    def bits(at: int, width: int, k: int) -> int:
        return row[at + k * width // 8] >> (k * width % 8) & ((1 << width) - 1)

    groups, blocks = -(-cols // kind.group), -(-cols // 256)
    high = cols * kind.low // 8
    scales = high + cols * kind.high // 8
    minimums = scales + groups * {Scale.F16: 2, Scale.ONE: 0}.get(kind.scale, 1)
    n_minimums = {Minimum.F16: cols // 16, Minimum.U8: cols // 32, Minimum.ZERO: groups}
    selectors = minimums + n_minimums.get(kind.minimum, 0)
    supers = selectors + (-(-cols // 128) if kind.selector_bits else 0)
    super_minimums = supers + {Super.NONE: 0, Super.ROW: 4, Super.BLOCK: 2 * blocks}[kind.super]
    entries = list(kind.table or ()) if table is None else [int(t) for t in table]

    def code_of(k: int) -> int:
        return bits(0, kind.low, k) | (bits(high, kind.high, k) << kind.low if kind.high else 0)

    def weight(k: int) -> float:
        g, code = k // kind.group, code_of(k)
        factor = np.float32(1)
        if kind.super is Super.ROW:
            factor = np.frombuffer(row, "<f4", 1, supers)[0]
        elif kind.super is Super.BLOCK:
            factor = half(supers + k // 256 * 2)
        scale = {
            Scale.F16: lambda: half(scales + 2 * g),
            Scale.I8: lambda: factor * np.float32(signed(scales + g)),
            Scale.NIBBLES: lambda: factor * np.float32(row[scales + g] & 15),
            Scale.E8M0: lambda: np.float32(2.0 ** (row[scales + g] - 128)),
            Scale.ONE: lambda: factor,
        }[kind.scale]()
        if kind.map is Map.OFFSET:
            mapped = code - kind.offset
        elif kind.map is Map.FLOAT:
            mapped = 16 * small_float(code)
        elif kind.map is Map.TRELLIS:
            before = k - 4 if k % 16 > 3 else k + 11 if k % 16 else k - 1
            mapped = entries[code << 2 | (code_of(before) if k % 128 else 0)]
        else:
            chosen = bits(selectors, 2, k // 32) if kind.selector_bits else 0
            mapped = entries[chosen << kind.bits | code]
        minimum = {
            Minimum.NONE: lambda: None,
            Minimum.F16: lambda: half(minimums + k // 32 * 2),
            Minimum.U8: lambda: (
                half(super_minimums + k // 256 * 2) * np.float32(row[minimums + k // 32])
            ),
            Minimum.NIBBLES: lambda: (
                half(super_minimums + k // 256 * 2) * np.float32(row[scales + g] >> 4)
            ),
            Minimum.ZERO: lambda: scale * np.float32(row[minimums + g] - kind.offset),
        }[kind.minimum]()
        product = np.float32(scale) * np.float32(mapped)
        return float(product if minimum is None else product - minimum)

    return [weight(k) for k in range(cols)]
