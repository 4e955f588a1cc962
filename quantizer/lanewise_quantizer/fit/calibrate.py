"""Second moments of every matrix's inputs, which come from the quantized layers before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from lanewise.loading.checkpoint import Role
from lanewise.loading.program import Experts
from lanewise_quantizer.fit.experts import SHARED, activate, roles_of, route, shared_part
from lanewise_quantizer.fit.forward import (
    ENDS,
    Floats,
    Forward,
    Vectors,
    output_norm,
    steps_of,
)
from lanewise_quantizer.fit.mixture import Part, QuantizeParts, Rows, quantize_experts
from lanewise_quantizer.fit.moments import Moment, Moments, bounded, moment_of
from lanewise_quantizer.fit.source import Source

FFN = (Role.FFN_GATE, Role.FFN_UP, Role.FFN_DOWN)

# Called with role, layer, weights [outputs, inputs] and the moment of their inputs; returns the
# weights as the format decodes them.
Quantize = Callable[[Role, int, Floats, Moment], Floats]


@dataclass(frozen=True)
class Quantizer:
    """What becomes of matrices: of single ones, and of those of all experts."""

    one: Quantize
    parts: QuantizeParts

    @staticmethod
    def of(one: Quantize) -> Quantizer:
        """Experts as if each of their matrices were a single one."""

        def parts(role: Role, layer: int, made: Iterable[Part]) -> None:
            for part in made:
                part.take(one(role, layer, part.weights, part.moment))

        return Quantizer(one, parts)


def calibrate(
    source: Source, x: Floats, quantizer: Quantizer, unquantized: Floats | None = None
) -> Moment:
    """Quantize every matrix of every layer in order; return the moment of the head's inputs.

    ``x`` [windows, tokens, hidden] is the embedded text, and in the end the last layer's outputs.
    Routers stay as they are.
    ``unquantized`` is the text as the model's own embedding has it: given, the model is run on it
    as it is beside, and moments know how far inputs drifted from there.
    """
    forward = Forward(source.config, x.shape[1])
    for layer in range(source.config.n_layers):
        vectors, streams = forward.vectors(source, layer), _Streams(x, unquantized)
        before = streams.copied() if vectors.is_beside else streams
        _steps(forward, source, layer, vectors, streams, before, quantizer.one)
        if isinstance(vectors.layer.ffn, Experts):
            _experts(forward, source, layer, vectors, streams, before, quantizer)
        for states in (x, unquantized):
            if states is not None:
                forward.end(states, vectors)
    norm = output_norm(source.config, source)
    moments = Moments(x.shape[-1], drifts=unquantized is not None)
    for part in forward.chunks(x):
        beside = None if unquantized is None else forward.norm(unquantized[part], norm)
        moments.add(forward.norm(x[part], norm), beside)
    return moments.found()


@dataclass(frozen=True)
class _Streams:
    """Hidden states [windows, tokens, hidden] of the quantized model, and of the model as it is."""

    x: Floats
    y: Floats | None

    def copied(self) -> _Streams:
        """Both as they are now."""
        return _Streams(self.x.copy(), None if self.y is None else self.y.copy())


def _steps(
    forward: Forward,
    source: Source,
    layer: int,
    vectors: Vectors,
    streams: _Streams,
    before: _Streams,
    quantize: Quantize,
) -> None:
    """Quantize a layer's matrices but those of experts, and run it with them, in place.

    ``before`` is what its feed-forward part reads.
    """
    x, y = streams.x, streams.y
    scale = np.float32(forward.config.residual_scale)
    done: dict[Role, Floats] = {}
    whole: dict[Role, Floats] = {}
    has_both = vectors.layer.attention is not None and vectors.layer.state is not None
    of_state = streams.copied() if has_both else streams  # what it reads, as attention does
    for step in steps_of(vectors.layer):
        for role in step:
            whole[role] = source(role, layer)
        size = whole[step[0]].shape[1]
        inputs = np.empty((*x.shape[:2], size), np.float32)
        ends = step[0] in ENDS
        read = before if step[0] in FFN else of_state if step[0] == Role.STATE_OUT else streams
        moments = Moments(size, y is not None, whole[step[0]].shape[0] if ends else 0)
        for part in forward.chunks(x):
            inputs[part] = forward.inputs(step[0], read.x[part], done, vectors)
            beside = missing = None
            if y is not None and read.y is not None:
                beside = forward.inputs(step[0], read.y[part], whole, vectors)
                if ends:
                    added = beside @ whole[step[0]].T
                    missing = bounded((y[part] - x[part]) / scale, added)
                    missing += added
                    missing -= inputs[part] @ whole[step[0]].T
                    forward.add(y[part], added, step[0], vectors)
            moments.add(inputs[part], beside, missing)
        moment = moments.found()
        for role in step:
            done[role] = quantize(role, layer, whole[role], moment)
        if ends:
            for part in forward.chunks(x):
                forward.add(x[part], inputs[part] @ done[step[0]].T, step[0], vectors)
            if step[0] == Role.STATE_OUT:
                of_state = streams
            if of_state is streams:  # nobody reads these inputs any more
                done.clear()
                whole.clear()
        del inputs, moments, moment  # before the next are there


def _experts(
    forward: Forward,
    source: Source,
    layer: int,
    vectors: Vectors,
    streams: _Streams,
    before: _Streams,
    quantizer: Quantizer,
) -> None:
    """Quantize a layer's experts and run them, in place; ``before`` is what they read."""
    ffn = vectors.layer.ffn
    assert isinstance(ffn, Experts)
    router = source(Role.ROUTER, layer)

    def rows_of(states: Floats, like: Rows | None) -> Rows:
        normed = forward.norm(states, vectors.ffn_norm).reshape(-1, states.shape[-1])
        routes = route(ffn, router, vectors.of, normed)
        return Rows(ffn, normed, routes, None if like is None else like.fitted)

    rows = rows_of(before.x, None)
    beside = None if before.y is None else rows_of(before.y, rows)
    quantize_experts(source, layer, vectors.of, rows, beside, quantizer.parts)
    if ffn.shared_size:
        _shared(source, layer, vectors, rows, beside, quantizer.one)
    for states, found in ((streams.x, rows), (streams.y, beside)):
        if states is not None and found is not None:
            forward.add(states, found.out.reshape(states.shape), Role.EXPERTS_DOWN, vectors)


def _shared(
    source: Source,
    layer: int,
    vectors: Vectors,
    rows: Rows,
    beside: Rows | None,
    quantize: Quantize,
) -> None:
    """Quantize the expert that all tokens go to, and add what it gives."""
    ffn = rows.ffn
    roles = roles_of(ffn, SHARED)
    *first, down = (source(role, layer) for role in roles)

    def inner_of(x: Floats, matrices: list[Floats]) -> Floats:
        *gate, up = (x @ one.T for one in matrices)
        return activate(ffn, gate[0] if gate else None, up)

    moment = moment_of(rows.x, None if beside is None else beside.x)
    made = [
        quantize(role, layer, weights, moment)
        for role, weights in zip(roles[:-1], first, strict=True)
    ]
    inner = inner_of(rows.x, made)
    unquantized = None if beside is None else inner_of(beside.x, first)
    last = quantize(Role.SHARED_DOWN, layer, down, moment_of(inner, unquantized))
    rows.out += shared_part(ffn, vectors.of, rows.x, inner @ last.T)
    if beside is not None and unquantized is not None:
        beside.out += shared_part(ffn, vectors.of, beside.x, unquantized @ down.T)
