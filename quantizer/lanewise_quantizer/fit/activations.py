"""What FFNs and experts make of their gate, or of up where they have none."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.program import Experts, Gated, Plain

Floats = npt.NDArray[np.float32]

# Coefficients of x P(x^2) / Q(x^2), the normal distribution up to x less a half between -5.6 and
# 5.6, the largest power first: those of the library (native/src/kernels/activations.inc).
NORMAL_P = (
    *(1.07998472e-10, -2.1991495e-8, 3.36053141e-6, 1.82410124e-4),
    *(4.58725141e-3, 3.71079673e-2, 0.398942127),
)
NORMAL_Q = (6.6224479e-5, 1.90118331e-3, 2.97833132e-2, 0.259680016, 1.0)


def activated(ffn: Gated | Plain | Experts, x: Floats) -> Floats:
    """The curve of an FFN, one of ``FFN_CURVES``, of each value."""
    if ffn.activation == "xielu":
        below = np.float32(ffn.limit) * (np.expm1(np.minimum(x, np.float32(-1e-6))) - x)
        square = np.float32(ffn.alpha) * x * x
        return np.asarray(np.where(x > 0, square, below) + x / 2, np.float32)
    if ffn.activation == "relu_squared":
        return relu_squared(x)
    if ffn.activation == "relu":
        return np.maximum(x, np.float32(0))
    return np.asarray(x * share(ffn.activation, x), np.float32)


def share(curve: str, x: Floats) -> Floats:
    """What SiLU and both GELUs multiply each value by."""
    if curve == "gelu":
        near = np.clip(x, np.float32(-5.6), np.float32(5.6))
        squares = near * near
        return np.asarray(
            0.5 + near * np.polyval(NORMAL_P, squares) / np.polyval(NORMAL_Q, squares)
        )
    if curve == "gelu_tanh":
        return sigmoid(np.float32(1.5957691) * (x + np.float32(0.044715) * x * x * x))
    return sigmoid(x)


def silu(gate: Floats, up: Floats) -> Floats:
    """gate * sigmoid(gate) * up, in the place of ``gate``."""
    gate *= sigmoid(gate)
    gate *= up
    return gate


def capped(gate: Floats, up: Floats, limit: float) -> Floats:
    """min(silu(gate), limit) times up within the limit; 0 is none."""
    most = np.float32(limit or np.inf)
    return np.asarray(np.minimum(gate * sigmoid(gate), most) * np.clip(up, -most, most))


def clamped(gate: Floats, up: Floats, limit: float, alpha: float) -> Floats:
    """gate * sigmoid(alpha gate) * (up + 1) of a gate at most the limit, and up within it."""
    most = np.float32(limit)
    gate, up = np.minimum(gate, most), np.clip(up, -most, most)
    return np.asarray(gate * sigmoid(np.float32(alpha) * gate) * (up + np.float32(1)))


def relu_squared(x: Floats) -> Floats:
    """max(x, 0)^2."""
    positive = np.maximum(x, np.float32(0))
    return np.asarray(positive * positive)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x))."""
    out = np.maximum(x, np.float32(-80))
    np.negative(out, out=out)
    np.exp(out, out=out)
    out += np.float32(1)
    np.divide(np.float32(1), out, out=out)
    return out
