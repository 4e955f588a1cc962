"""Second moments of every matrix's inputs, which come from the quantized layers before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lanewise.loading.checkpoint import Role
from lanewise_quantizer.coded import CodedType, Map
from lanewise_quantizer.fit.forward import STEPS, Floats, Forward, Vectors
from lanewise_quantizer.fit.hessian import Hessian
from lanewise_quantizer.fit.source import Source


@dataclass(frozen=True, eq=False)
class Moment:
    """Sum over tokens of x x^T, [inputs, inputs], for the inputs x of a matrix."""

    sum: Floats
    tokens: int
    _hessians: dict[tuple[float, int, bool], Hessian] = field(default_factory=dict)

    def mean(self) -> Floats:
        """The mean per token."""
        return self.sum / np.float32(self.tokens)

    def hessian(self, kind: CodedType, damping: float) -> Hessian:
        """See :meth:`Hessian.of`; matrices that share their inputs share what is computed here."""
        key = damping, kind.group, kind.map is Map.TRELLIS
        if key not in self._hessians:
            self._hessians[key] = Hessian.of(self.sum, kind, damping)
        return self._hessians[key]


# Called with role, layer, weights [outputs, inputs] and the moment of their inputs; returns the
# weights as the format decodes them.
Quantize = Callable[[Role, int, Floats, Moment], Floats]


def looked_up_too(head: Moment) -> Moment:
    """The moment for a tied embedding: of the head's inputs, and of tokens looked up, where every
    input counts alike, with as much weight."""
    size = len(head.sum)
    equal = np.eye(size, dtype=np.float32) * (np.trace(head.sum) / np.float32(size))
    return Moment(head.sum + equal, head.tokens)


def moment_of(x: Floats) -> Moment:
    """The moment of inputs x [..., inputs]."""
    rows = x.reshape(-1, x.shape[-1])
    return Moment(rows.T @ rows, len(rows))


def calibrate(source: Source, x: Floats, quantize: Quantize) -> Moment:
    """Quantize every matrix of every layer in order; return the moment of the head's inputs.

    ``x`` [windows, tokens, hidden] is the embedded text, and in the end the last layer's outputs.
    """
    config = source.config
    forward = Forward(config, x.shape[1])
    for layer in range(config.n_layers):
        _layer(forward, source, layer, x, quantize)
    return moment_of(forward.norm(x, source(Role.OUTPUT_NORM)))


def _layer(forward: Forward, source: Source, layer: int, x: Floats, quantize: Quantize) -> None:
    """Quantize a layer's matrices and run it with them, in place."""
    vectors = forward.vectors(source, layer)
    done: dict[Role, Floats] = {}
    for step in STEPS:
        inputs = np.empty((*x.shape[:2], source.tensors[step[0], layer].cols), np.float32)
        for part in forward.chunks(x):
            inputs[part] = _inputs(forward, step[0], x[part], vectors, done)
        moment = moment_of(inputs)
        for role in step:
            done[role] = quantize(role, layer, source(role, layer), moment)
        if len(step) == 1:  # attention and feed-forward each end in one matrix, added to x
            for part in forward.chunks(x):
                x[part] += inputs[part] @ done[step[0]].T
        del inputs, moment  # before the next are there


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
