"""Second moments of every matrix's inputs, which come from the quantized layers before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Experts
from lanewise_quantizer.fit.experts import SHARED, activate, of_shared, roles_of, route, shared_part
from lanewise_quantizer.fit.forward import Floats, Forward
from lanewise_quantizer.fit.layer import (
    BY_HEAD,
    ENDS,
    PER_LAYER_STEPS,
    RESULT_NORMS,
    Vectors,
    output_norm,
    steps_of,
    vectors_of,
)
from lanewise_quantizer.fit.mixture import Part, QuantizeParts, Rows, quantize_experts
from lanewise_quantizer.fit.moments import Moment, Moments, bounded, moment_of
from lanewise_quantizer.fit.source import Source
from lanewise_quantizer.fit.states import States

FFN = (Role.FFN_GATE, Role.FFN_UP, Role.FFN_DOWN)

# Called with role, layer, weights [outputs, inputs] and the moment of their inputs; returns the
# weights as the format decodes them.
Quantize = Callable[[Role, int, Floats, Moment], Floats]


@dataclass(frozen=True)
class Quantizer:
    """What becomes of matrices: of single ones, and of those of all experts or heads."""

    one: Quantize
    parts: QuantizeParts


@dataclass(frozen=True)
class Streams:
    """A text in the quantized model, and in the model as it is."""

    x: States
    y: States | None

    def copied(self) -> Streams:
        """Both as they are now."""
        return Streams(self.x.copied(), None if self.y is None else self.y.copied())

    def both(self) -> list[States]:
        """The streams that there are: ``x``, and ``y`` unless it is None."""
        return [self.x] if self.y is None else [self.x, self.y]

    def moment(self, of: Callable[[Floats], Floats]) -> Moment:
        """The moment of what a function makes of hidden states."""
        moments = Moments(self.x.x.shape[-1], drifts=self.y is not None)
        for part in self.x.parts():
            moments.add(of(self.x.x[part]), None if self.y is None else of(self.y.x[part]))
        return moments.found()


@dataclass(frozen=True)
class Run:
    """A layer whose matrices are being quantized, and the text that goes through it."""

    forward: Forward
    source: Source
    quantizer: Quantizer
    vectors: Vectors
    streams: Streams
    before: Streams  # what its feed-forward part reads

    def whole(self, role: Role) -> Floats:
        """One of its matrices as it is."""
        return self.source(role, self.vectors.number)

    def quantized(self, role: Role, weights: Floats, moment: Moment) -> Floats:
        """What becomes of it."""
        return self.quantizer.one(role, self.vectors.number, weights, moment)


def calibrate(
    source: Source, text: States, quantizer: Quantizer, unquantized: States | None = None
) -> Moment:
    """Quantize every matrix of every layer in order; return the moment of the head's inputs.

    ``text`` is embedded, and has in the end the last layer's outputs. Routers stay as they are.
    ``unquantized`` is the text as the model's own embedding has it: given, the model is run on it
    as it is beside, and moments know how far inputs drifted from there.
    """
    forward = Forward(source.config, text.x.shape[1])
    streams = Streams(text, unquantized)
    if source.config.per_layer_size:
        _begin(forward, source, streams, quantizer.one)
    for layer in range(source.config.n_layers):
        vectors = vectors_of(source.config, source, layer)
        before = streams.copied() if vectors.is_beside else streams
        run = Run(forward, source, quantizer, vectors, streams, before)
        _steps(run, steps_of(vectors.layer))
        if isinstance(vectors.layer.ffn, Experts):
            _experts(run)
        if source.config.per_layer_size:
            _steps(run, PER_LAYER_STEPS)
        for states in streams.both():
            forward.end(states.x, vectors)
    norm = output_norm(source.config, source)
    return streams.moment(lambda x: forward.norm(x, norm))


def _begin(forward: Forward, source: Source, streams: Streams, quantize: Quantize) -> None:
    """Quantize the projection of what layers have for themselves, and make that of both."""
    projection, norm = source(Role.PER_LAYER_PROJECTION), source(Role.PER_LAYER_NORM)
    made = quantize(Role.PER_LAYER_PROJECTION, 0, projection, streams.moment(lambda x: x))
    forward.begin(streams.x, made, norm)
    if streams.y is not None:
        forward.begin(streams.y, projection, norm)


def _steps(run: Run, steps: Iterable[tuple[Role, ...]]) -> None:
    """Quantize matrices of a layer that are no experts', and run it with them, in place."""
    vectors, streams = run.vectors, run.streams
    done: dict[Role, Floats] = {}
    whole: dict[Role, Floats] = {}
    has_both = vectors.layer.attention is not None and vectors.layer.state is not None
    of_state = streams.copied() if has_both else streams  # what it reads, as attention does
    for step in steps:
        for role in step:
            whole[role] = run.whole(role)
        if step[0] in BY_HEAD:
            done[step[0]] = _heads(run, step[0], done, whole)
            continue
        ends = step[0] in ENDS
        is_of_state = step[0] in (Role.STATE_GATE, Role.STATE_OUT)
        read = run.before if step[0] in FFN else of_state if is_of_state else streams
        inputs, moment = _inputs(run, step[0], read, done, whole)
        for role in step:
            done[role] = run.quantized(role, whole[role], moment)
        if ends:
            for part in streams.x.parts():
                product = inputs[part] @ done[step[0]].T
                run.forward.add(streams.x.x[part], product, step[0], vectors)
            if step[0] == Role.STATE_OUT:
                of_state = streams
            if of_state is streams:  # these inputs have all been read
                done.clear()
                whole.clear()
        del inputs, moment  # before the next are there


def _inputs(
    run: Run,
    role: Role,
    read: Streams,
    done: Mapping[Role, Floats],
    whole: Mapping[Role, Floats],
) -> tuple[Floats, Moment]:
    """What the step that begins with a matrix is given, and its moment; ``read`` are its states.

    Where it ends a branch, what the matrix as it is gives is added to the unquantized stream.
    """
    forward, vectors, streams = run.forward, run.vectors, run.streams
    x, size = streams.x.x, whole[role].shape[1]
    inputs = np.empty((*x.shape[:2], size), np.float32)
    ends, has_other = role in ENDS, streams.y is not None
    moments = Moments(size, has_other, whole[role].shape[0] if ends else 0)
    for part in streams.x.parts():
        inputs[part] = forward.inputs(role, read.x.part(part), done, vectors)
        beside = missing = None
        if streams.y is not None and read.y is not None:
            beside = forward.inputs(role, read.y.part(part), whole, vectors)
            if ends:
                y = streams.y.x[part]
                added = beside @ whole[role].T
                missing = np.subtract(added, inputs[part] @ whole[role].T, dtype=np.float32)
                if RESULT_NORMS.get(role) not in vectors.of:  # a norm gives another size
                    scale = np.float32(forward.config.residual_scale)
                    missing += bounded((y - x[part]) / scale, added)
                forward.add(y, added, role, vectors)
        moments.add(inputs[part], beside, missing)
    return inputs, moments.found()


def _heads(
    run: Run, role: Role, done: Mapping[Role, Floats], whole: Mapping[Role, Floats]
) -> Floats:
    """Quantize a matrix of which each head has a part, fitted to that head's inputs."""
    forward, vectors, streams = run.forward, run.vectors, run.streams
    weights = whole[role].reshape(vectors.attention.n_heads, -1, whole[role].shape[1])
    moments = [Moments(weights.shape[2], streams.y is not None) for _ in weights]
    for part in streams.x.parts():
        x = forward.inputs_by_head(role, streams.x.part(part), done, vectors)
        y = None
        if streams.y is not None:
            y = forward.inputs_by_head(role, streams.y.part(part), whole, vectors)
        for head, moment in enumerate(moments):
            moment.add(x[:, :, head], None if y is None else y[:, :, head])
    made: list[Floats] = []
    parts = (
        Part(own, moment.found(), made.append) for own, moment in zip(weights, moments, strict=True)
    )
    run.quantizer.parts(role, vectors.number, parts)
    return np.concatenate(made)


def _experts(run: Run) -> None:
    """Quantize a layer's experts and run them, in place."""
    forward, vectors, before = run.forward, run.vectors, run.before
    ffn, router = vectors.layer.ffn, run.whole(Role.ROUTER)
    assert isinstance(ffn, Experts)

    read = [forward.read_by_experts(states.x, vectors) for states in before.both()]
    inputs = [one.experts for one in read]
    if ffn.latent_size:
        inputs = _projected(run, Role.EXPERTS_IN, inputs)
    rows: Rows | None = None
    beside: Rows | None = None
    for one, x in zip(read, inputs, strict=True):
        routes = route(ffn, router, vectors.of, one.router)
        if rows is None:
            rows = Rows(ffn, x, routes, None)
        else:
            beside = Rows(ffn, x, routes, rows.fitted)
    assert rows is not None
    parts = run.quantizer.parts
    quantize_experts(run.source, vectors.number, vectors.of, rows, beside, parts)
    products = [rows.out] if beside is None else [rows.out, beside.out]
    if ffn.latent_size:
        products = _projected(run, Role.EXPERTS_OUT, products)
    if ffn.shared_size:
        both = _shared(run, read[0].shared, read[1].shared if beside is not None else None)
        products = [
            forward.together(product, other, vectors)
            for product, other in zip(products, both, strict=True)
        ]
    for states, product in zip(run.streams.both(), products, strict=True):
        forward.add(states.x, product.reshape(states.x.shape), Role.EXPERTS_DOWN, vectors)


def _projected(run: Run, role: Role, inputs: list[Floats]) -> list[Floats]:
    """Quantize a matrix; return what it gives for the first inputs, and unquantized for others."""
    weights = run.whole(role)
    made = run.quantized(role, weights, moment_of(*inputs))
    return [x @ one.T for x, one in zip(inputs, (made, weights), strict=False)]


def _shared(run: Run, x: Floats, beside: Floats | None) -> list[Floats]:
    """Quantize the expert that all tokens go to; returns what it gives for its rows x, and what it
    gives unquantized for those ``beside`` if they are given."""
    vectors, ffn = run.vectors, run.vectors.layer.ffn
    assert isinstance(ffn, Experts)
    roles = roles_of(ffn, SHARED)
    *first, down = (run.whole(role) for role in roles)

    def inner_of(x: Floats, matrices: list[Floats]) -> Floats:
        *gate, up = (x @ one.T for one in matrices)
        return activate(of_shared(ffn), gate[0] if gate else None, up)

    moment = moment_of(x, beside)
    made = [
        run.quantized(role, weights, moment)
        for role, weights in zip(roles[:-1], first, strict=True)
    ]
    inner = inner_of(x, made)
    unquantized = None if beside is None else inner_of(beside, first)
    last = run.quantized(Role.SHARED_DOWN, down, moment_of(inner, unquantized))
    results = [shared_part(ffn, vectors.of, x, inner @ last.T)]
    if beside is not None and unquantized is not None:
        results.append(shared_part(ffn, vectors.of, beside, unquantized @ down.T))
    return results
