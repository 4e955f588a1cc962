"""The numeric contract (quantizer/FORMAT.md, section 2) in numpy: slow and exact."""

import numpy as np
import numpy.typing as npt

from lanewise_quantizer.coded import SEGMENT, CodedMatrix

SMALLEST_PEAK = np.float32(1e-30)
GROUP = 32  # inputs that share an activation scale
OUTLYING = np.float32(8)  # times the magnitude of every other of its group

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


def quantize_activations(x: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """Codes [n], scales [ceil(n / 32)] and outliers [n], 0 for other inputs, of one row."""
    codes = np.zeros(len(x), np.int32)
    scales = np.zeros(-(-len(x) // GROUP), np.float32)
    outliers = np.zeros(len(x), np.float32)
    for i in range(len(scales)):
        here = slice(i * GROUP, (i + 1) * GROUP)
        part = x[here].copy()
        if not np.isfinite(part).all():
            raise ValueError(f"activations: inputs from {i * GROUP} on hold NaN or infinity")
        largest = int(np.abs(part).argmax())
        others = np.abs(np.delete(part, largest)).max(initial=np.float32(0))
        if abs(part[largest]) > OUTLYING * others and abs(part[largest]) >= SMALLEST_PEAK:
            outliers[i * GROUP + largest] = part[largest]
            part[largest] = 0
        peak = np.abs(part).max()
        if peak < SMALLEST_PEAK:
            continue
        scales[i] = peak / np.float32(127)
        codes[here] = np.rint(np.clip(part * (np.float32(127) / peak), -127, 127))
    return codes, scales, outliers


def product(
    weights: IntArray,
    scales: FloatArray,
    codes: IntArray,
    activation_scales: FloatArray,
    minimums: FloatArray | None = None,
    group: int = 32,
    second: tuple[IntArray, FloatArray] | None = None,
) -> np.float32:
    """One output for one row, but for its outliers.

    ``weights`` [n] are integer codes, ``scales`` [ceil(n / group)] those of their groups of 16, 32,
    64 or 128; ``codes`` and ``activation_scales`` come from :func:`quantize_activations`. A weight
    is ``scale * code - minimum`` with ``minimums`` for each 32 inputs, or for each 16 where the
    groups are; without them it is ``scale * code``. ``second`` has the integer codes and scales of
    types whose weights are the sum of two products: each segment comes twice.
    """
    step, acc = min(group, GROUP), np.float32(0)
    for segment in range(0, len(weights), SEGMENT):
        for w, s in [(weights, scales)] if second is None else [(weights, scales), second]:
            for k in range(segment, min(segment + SEGMENT, len(weights)), step):
                total = np.float32(int(np.dot(w[k : k + step], codes[k : k + step])))
                scaled = total * s[k // group] + np.float32(0)
                acc = fma(scaled, activation_scales[k // GROUP], acc)
    if minimums is not None:
        step, taken = len(weights) // len(minimums), np.float32(0)
        for g, minimum in enumerate(minimums):
            total = np.float32(int(codes[g * step : (g + 1) * step].sum()))
            taken = fma(activation_scales[g * step // GROUP] * total, -minimum, taken)
        acc = acc + taken
    return acc


def outlier_product(weights: FloatArray, outliers: FloatArray) -> np.float32:
    """What the outliers of a row add to an output, ``weights`` [n] being its weights in float32."""
    h = np.float32(0)
    for k in np.flatnonzero(outliers):
        h = fma(outliers[k], weights[k], h)
    return h


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
