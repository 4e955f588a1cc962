"""Second moments of every matrix's inputs, which come from the quantized layers before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanewise.loading.checkpoint import Role
from lanewise_quantizer.fit.forward import STEPS, Floats, Forward, Vectors
from lanewise_quantizer.fit.source import Source


@dataclass(frozen=True)
class Moment:
    """Sum over tokens of x x^T, [inputs, inputs], for the inputs x of a matrix."""

    sum: Floats
    tokens: int

    def mean(self) -> Floats:
        """The mean per token."""
        return self.sum / np.float32(self.tokens)


# Called with role, layer, weights [outputs, inputs] and the moment of their inputs; returns the
# weights as the format decodes them.
Quantize = Callable[[Role, int, Floats, Moment], Floats]


def looked_up_too(head: Moment) -> Moment:
    """The moment for a tied embedding: of the head's inputs, and of tokens looked up, where every
    input counts alike, with as much weight."""
    size = len(head.sum)
    equal = np.eye(size, dtype=np.float32) * (np.trace(head.sum) / np.float32(size))
    return Moment(head.sum + equal, head.tokens)


def add_moment(total: Floats, x: Floats) -> None:
    """Add x x^T of every token of x [..., inputs]."""
    rows = x.reshape(-1, x.shape[-1])
    total += rows.T @ rows


def calibrate(
    source: Source, ids: npt.NDArray[np.integer], quantize: Quantize, embedding: Floats
) -> Moment:
    """Quantize every matrix of every layer in order; return the moment of the head's inputs.

    ``ids`` is [windows, tokens]; ``embedding`` the token embedding as the model will use it.
    """
    config = source.config
    forward = Forward(config, ids.shape[1])
    x = embedding[ids]
    for layer in range(config.n_layers):
        _layer(forward, source, layer, x, quantize)
    norm = source(Role.OUTPUT_NORM)
    moment = np.zeros((config.hidden_size, config.hidden_size), np.float32)
    for part in forward.chunks(x):
        add_moment(moment, forward.norm(x[part], norm))
    return Moment(moment, ids.size)


def _layer(forward: Forward, source: Source, layer: int, x: Floats, quantize: Quantize) -> None:
    """Quantize a layer's matrices and run it with them, in place."""
    vectors = forward.vectors(source, layer)
    done: dict[Role, Floats] = {}
    tokens = x.shape[0] * x.shape[1]
    held: list[Floats] = []
    for step in STEPS:
        size = source.tensors[step[0], layer].cols
        moment = np.zeros((size, size), np.float32)
        held = [_inputs(forward, step[0], x[part], vectors, done) for part in forward.chunks(x)]
        for rows in held:
            add_moment(moment, rows)
        for role in step:
            done[role] = quantize(role, layer, source(role, layer), Moment(moment, tokens))
        if len(step) == 1:  # attention and feed-forward each end in one matrix, added to x
            for part, rows in zip(forward.chunks(x), held, strict=True):
                x[part] += rows @ done[step[0]].T


def _inputs(
    forward: Forward, role: Role, x: Floats, vectors: Vectors, done: dict[Role, Floats]
) -> Floats:
    if role == Role.ATTN_Q:
        return forward.norm(x, vectors.attn_norm)
    if role == Role.ATTN_OUTPUT:
        return forward.attention(forward.norm(x, vectors.attn_norm), done, vectors)
    if role == Role.FFN_GATE:
        return forward.norm(x, vectors.ffn_norm)
    return forward.gated(forward.norm(x, vectors.ffn_norm), done)
