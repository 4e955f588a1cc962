"""The numeric contract (quantizer/FORMAT.md, section 2) in numpy: slow and exact."""

import numpy as np
import numpy.typing as npt

SEGMENT = 128
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
) -> np.float32:
    """One output for one row.

    ``weights`` [n] are integer codes, ``scales`` [n / group] their group scales, ``codes`` and
    ``activation_scales`` come from :func:`quantize_activations`. A weight is
    ``scale * code - minimum`` with ``minimums`` [n / group], or ``scale * code`` without.
    """
    group = len(weights) // len(scales)
    per_segment = SEGMENT // group
    acc = np.float32(0)
    for first in range(0, len(scales), per_segment):
        last = min(first + per_segment, len(scales))
        sums = [
            int(np.dot(weights[g * group : (g + 1) * group], codes[g * group : (g + 1) * group]))
            for g in range(first, last)
        ]
        seg, prefix = np.float32(0), 0
        for g in range(first, last):
            prefix += sums[g - first]
            following = scales[g + 1] if g + 1 < last else np.float32(0)
            seg = fma(np.float32(prefix), scales[g] - following, seg)
        if minimums is not None:
            for g in range(first, last):
                activation_sum = int(codes[g * group : (g + 1) * group].sum())
                seg = fma(np.float32(activation_sum), -minimums[g], seg)
        acc = fma(seg, activation_scales[first // per_segment], acc)
    return acc
