"""The numeric contract (quantizer/FORMAT.md, section 2) in numpy: slow and exact."""

import numpy as np
import numpy.typing as npt

from lanewise_quantizer.coded import SEGMENT, CodedMatrix

SMALLEST_PEAK = np.float32(1e-30)

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """``a * b + c`` rounded once to float32.

    The product of two float32 is exact in float64. Their sum with ``c`` may not be, so it is
    rounded to odd there first: rounding that to float32 is then the single correct rounding.
    """
    product = float(a) * float(b)
    total = product + float(c)
    part = total - product
    error = (product - (total - part)) + (float(c) - part)
    if error != 0.0 and np.float64(total).view(np.uint64) % 2 == 0:
        total = float(np.nextafter(total, np.inf if error > 0 else -np.inf))
    return np.float32(total)


def quantize_activations(x: FloatArray) -> tuple[IntArray, FloatArray]:
    """Codes [n] and scales [ceil(n / 128)] of one row of activations."""
    codes = np.zeros(len(x), np.int32)
    scales = np.zeros(-(-len(x) // SEGMENT), np.float32)
    for i in range(len(scales)):
        part = x[i * SEGMENT : (i + 1) * SEGMENT]
        peak = np.abs(part).max()
        if not np.isfinite(peak):
            raise ValueError(f"activations: segment {i} holds NaN or infinity")
        if peak < SMALLEST_PEAK:
            continue
        scales[i] = peak / np.float32(127)
        scaled = part * (np.float32(127) / peak)
        codes[i * SEGMENT : (i + 1) * SEGMENT] = np.rint(np.clip(scaled, -127, 127))
    return codes, scales


def product(
    weights: IntArray,
    scales: FloatArray,
    codes: IntArray,
    activation_scales: FloatArray,
    minimums: FloatArray | None = None,
    group: int = 32,
    second: tuple[IntArray, FloatArray] | None = None,
) -> np.float32:
    """One output for one row.

    ``weights`` [n] are integer codes, ``scales`` [ceil(n / group)] those of their groups of 16, 32,
    64 or 128; ``codes`` and ``activation_scales`` come from :func:`quantize_activations`. A weight
    is ``scale * code - minimum`` with ``minimums`` for each 32 inputs, or for each 16 where the
    groups are; without them it is ``scale * code``. ``second`` has the integer codes and scales of
    types whose weights are the sum of two products: each segment comes twice.
    """
    per_segment = SEGMENT // group
    acc = np.float32(0)
    for segment, first in enumerate(range(0, len(scales), per_segment)):
        last = min(first + per_segment, len(scales))
        for w, s in [(weights, scales)] if second is None else [(weights, scales), second]:
            seg, prefix = np.float32(0), 0
            for g in range(first, last):
                part = slice(g * group, (g + 1) * group)
                prefix += int(np.dot(w[part], codes[part]))
                following = s[g + 1] if g + 1 < last else np.float32(0)
                seg = fma(np.float32(prefix), s[g] - following, seg)
            acc = fma(seg, activation_scales[segment], acc)
    if minimums is not None:
        step, taken = len(weights) // len(minimums), np.float32(0)
        for g, minimum in enumerate(minimums):
            total = np.float32(int(codes[g * step : (g + 1) * step].sum()))
            taken = fma(activation_scales[g * step // SEGMENT] * total, -minimum, taken)
        acc = acc + taken
    return acc


def coded_product(
    matrix: CodedMatrix, codes: IntArray, activation_scales: FloatArray
) -> FloatArray:
    """All outputs [rows] of a coded matrix for one row of activations."""
    scales, minimums = matrix.group_scales(), matrix.group_minimums()
    passes = [(w.astype(np.int32), scales * np.float32(n)) for w, n in matrix.passes()]
    return np.array(
        [
            product(
                passes[0][0][row],
                passes[0][1][row],
                codes,
                activation_scales,
                minimums=None if minimums is None else minimums[row],
                group=matrix.type.group,
                second=(passes[1][0][row], passes[1][1][row]) if len(passes) > 1 else None,
            )
            for row in range(matrix.rows)
        ],
        np.float32,
    )
