"""Second moments of every matrix's inputs, which come from the quantized layers before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lanewise.loading.checkpoint import Role
from lanewise_quantizer.fit.forward import STEPS, Floats, Forward
from lanewise_quantizer.fit.moments import Moment, Moments
from lanewise_quantizer.fit.source import Source

# Called with role, layer, weights [outputs, inputs] and the moment of their inputs; returns the
# weights as the format decodes them.
Quantize = Callable[[Role, int, Floats, Moment], Floats]


def calibrate(
    source: Source, x: Floats, quantize: Quantize, unquantized: Floats | None = None
) -> Moment:
    """Quantize every matrix of every layer in order; return the moment of the head's inputs.

    ``x`` [windows, tokens, hidden] is the embedded text, and in the end the last layer's outputs.
    ``unquantized`` is the text as the model's own embedding has it: given, the model is run on it
    as it is beside, and moments know how far inputs drifted from there.
    """
    forward = Forward(source.config, x.shape[1])
    for layer in range(source.config.n_layers):
        _layer(forward, source, layer, _Streams(x, unquantized), quantize)
    norm = source(Role.OUTPUT_NORM)
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


def _layer(
    forward: Forward, source: Source, layer: int, streams: _Streams, quantize: Quantize
) -> None:
    """Quantize a layer's matrices and run it with them, in place."""
    vectors = forward.vectors(source, layer)
    x, y = streams.x, streams.y
    done: dict[Role, Floats] = {}
    whole: dict[Role, Floats] = {}
    for step in STEPS:
        for role in step:
            whole[role] = source(role, layer)
        size = whole[step[0]].shape[1]
        inputs = np.empty((*x.shape[:2], size), np.float32)
        moments = Moments(size, drifts=y is not None)
        for part in forward.chunks(x):
            inputs[part] = forward.inputs(step[0], x[part], done, vectors)
            beside = None
            if y is not None:
                beside = forward.inputs(step[0], y[part], whole, vectors)
                if len(step) == 1:
                    forward.add(y[part], beside @ whole[step[0]].T, step[0], vectors)
            moments.add(inputs[part], beside)
        moment = moments.found()
        for role in step:
            done[role] = quantize(role, layer, whole[role], moment)
        if len(step) == 1:  # attention and feed-forward each end in one matrix, added to x
            for part in forward.chunks(x):
                forward.add(x[part], inputs[part] @ done[step[0]].T, step[0], vectors)
            done.clear()
            whole.clear()
        del inputs, moments, moment  # before the next are there
