"""Several residual streams of the definition, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import ModelConfig
from tests.golden.reference import program
from tests.golden.reference.ffn import ffn_curve
from tests.golden.reference.parts import Array, norm, rms

Own = Mapping[Role, Array]


def hidden_rows(
    config: ModelConfig, weights: program.Weights, x: Array, inputs: Array
) -> tuple[Array, float]:
    """The rows behind the last layer, and the margin."""
    n, stored, margin = config.n_streams, program.Stored(), np.inf
    parts = weights[Role.STREAMS_IN, 0].reshape(n - 1, config.hidden_size, -1)
    streams = [x, *(resized(x @ part.T, x) for part in parts)]
    for index, layer in enumerate(config.layers):
        own = program.of_layer(weights, index)
        streams = predicted(config, own, streams)
        y = streams[0]
        x, near = program.through_layer(config, index, own, y, stored)
        margin = min(margin, near)
        shares = 1 + routed(config, own, x) @ own[Role.STREAM_CORRECTION].reshape(n, n).T
        streams = [stream + shares[:, i, None] * (x - y) for i, stream in enumerate(streams)]
        assert layer.ffn is not None
        scaled = streams[0] * own[Role.STREAM_SCALE]
        gate = ffn_curve(layer.ffn, scaled @ own[Role.PER_LAYER_GATE].T)
        result = gate * inputs[:, index] @ own[Role.PER_LAYER_OUT].T
        result = norm(config, own, Role.PER_LAYER_RESULT_NORM, result)
        streams = [streams[0], *(stream + result for stream in streams[1:])]
    parts = weights[Role.STREAMS_OUT, 0].reshape(n - 1, config.hidden_size, -1)
    others = [
        resized(stream @ part.T, streams[0])
        for stream, part in zip(streams[1:], parts, strict=True)
    ]
    return np.mean([streams[0], *others], axis=0), float(margin)


def resized(rows: Array, like: Array) -> Array:
    """Rows as large as others."""
    size, own = (np.mean(one * one, axis=-1, keepdims=True) for one in (like, rows))
    return np.asarray(rows * np.sqrt(size / np.maximum(own, 1e-5)))


def routed(config: ModelConfig, own: Own, x: Array) -> Array:
    """A number for each stream, [tokens][streams]."""
    normed = rms(x, own[Role.STREAM_NORM], config.rms_norm_eps) / config.hidden_size
    return np.asarray(np.tanh(normed @ own[Role.STREAM_ROUTER].reshape(config.n_streams, -1).T))


def predicted(config: ModelConfig, own: Own, streams: list[Array]) -> list[Array]:
    """Each stream plus a mixture of all."""
    n = config.n_streams
    shares = routed(config, own, streams[0]) @ own[Role.STREAM_PREDICTION].reshape(n * n, n).T
    shares = shares.reshape(-1, n, n, 1)
    return [
        stream + sum(shares[:, i, k] * streams[k] for k in range(n))
        for i, stream in enumerate(streams)
    ]


def with_laurel(config: ModelConfig, own: Own, before: Array, x: Array) -> Array:
    """x behind attention, with what the normalized x before it gives."""
    z = norm(config, own, Role.ATTN_NORM, before)
    result = z @ own[Role.LAUREL_DOWN].T @ own[Role.LAUREL_UP].T
    result = rms(result, own[Role.LAUREL_NORM], config.rms_norm_eps)
    return np.asarray((x + z + result) / math.sqrt(2))
