"""Norms and curves of the definition, in float64."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import ModelConfig

Array = NDArray[np.float64]


def norm(config: ModelConfig, own: Mapping[Role, Array], role: Role, x: Array) -> Array:
    """The model's kind of norm with the weight of a role; x itself where there is none."""
    if role not in own:
        return x
    eps = (config.result_eps if role.name.endswith("RESULT_NORM") else 0) or config.rms_norm_eps
    if config.norm == "rms":
        return rms(x, own[role], eps)
    centred = x - x.mean(axis=-1, keepdims=True)
    normed = rms(centred, own[role], eps)
    return normed + own[Role[f"{role.name}_BIAS"]] if config.norm_bias else normed


def rms(x: Array, weight: Array, eps: float) -> Array:
    """RMSNorm over the last axis."""
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight)


def coded(x: Array) -> Array:
    """What the codes of rows stand for, with one scale for each."""
    scale = np.maximum(np.abs(x).max(axis=-1, keepdims=True), 1e-5) / 127
    return np.asarray(np.rint(x / scale) * scale)


def silu(x: Array) -> Array:
    """x sigmoid(x)."""
    return x * sigmoid(x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)))


def softplus(x: Array) -> Array:
    """ln(1 + exp(x))."""
    return np.asarray(np.logaddexp(x, 0))


def curve(name: str, x: Array) -> Array:
    """One of CURVES."""
    if name == "silu":
        return silu(x)
    if name == "gelu":
        return np.asarray(x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2)
    if name == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return np.asarray(x * (1 + np.tanh(inner)) / 2)
    return np.asarray(np.maximum(x, 0) ** {"relu": 1, "relu_squared": 2}[name])


def softmax(x: Array) -> Array:
    """Over all of x."""
    terms = np.exp(x - x.max())
    return np.asarray(terms / terms.sum())
