"""What each matrix of a model loses as each type, in one unit, so that bits can go where they pay.

The loss of a matrix as a type is its relative error times what an error of that matrix costs. With
text, the relative error is that of its outputs, ``tr(E H E^T) / tr(W H W^T)``, on a sample of its
rows, H the second moment of its inputs; and its cost is measured: the matrix alone is quantized to
a probe type, the model run on a window of the text, and the Kullback-Leibler divergence of its
predictions divided by the probe's relative error. To first order divergences are proportional to
squared errors and add up. Without text H is the identity, and the costs are those found on small
trained models, by role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Role
from lanewise_quantizer.coded import CODED_TYPES
from lanewise_quantizer.fit.calibrate import Quantizer, calibrate
from lanewise_quantizer.fit.feedback import quantize_by_importance
from lanewise_quantizer.fit.forward import Forward, embedded
from lanewise_quantizer.fit.layer import matrices_of, output_norm, vectors_of
from lanewise_quantizer.fit.mixture import Part
from lanewise_quantizer.fit.moments import Moment, looked_up_too
from lanewise_quantizer.fit.source import Source
from lanewise_quantizer.fit.states import States
from lanewise_quantizer.fit.tables import default_table
from lanewise_quantizer.storage import FLOAT_BYTES, decode_rows, encode_floats

Floats = npt.NDArray[np.float32]
Key = tuple[Role, int]
Losses = dict[Key, dict[str, float]]  # of each matrix as each type

TABLE = Role.PER_LAYER_EMBEDDING  # of which only some rows are ever read
ALONE = (TABLE, Role.TOKEN_EMBEDDING, Role.OUTPUT, Role.PER_LAYER_PROJECTION)
SAMPLED_ROWS = 256
PROBES = ("cb3", "q8_0")  # the first whose groups divide the rows
PROBE_TOKENS = 256  # of the window that costs are measured on
EVERY = 4  # positions of it, whose predictions are compared
# Divergence for a relative error of the weights, FFN_GATE's being 1: means of two small models.
COSTS = {
    Role.TOKEN_EMBEDDING: 5.0,
    Role.OUTPUT: 5.0,
    Role.ATTN_Q: 0.5,
    Role.ATTN_K: 0.5,
    Role.ATTN_V: 0.7,
    Role.ATTN_OUTPUT: 0.7,
    # Taken to be as those of attention; the small matrices keep their types.
    Role.ATTN_GATE: 0.5,
    Role.LATENT_QUERY: 0.5,
    Role.LATENT_DOWN: 0.7,
    Role.LATENT_KEYS: 0.5,
    Role.LATENT_VALUES: 0.7,
    Role.STATE_IN: 0.7,
    Role.STATE_KEYS: 0.7,
    Role.STATE_VALUES: 0.7,
    Role.STATE_GATE: 0.5,
    Role.STATE_OUT: 0.7,
    Role.STATE_DECAY: 0.0,
    Role.STATE_DECAY_DOWN: 0.0,
    Role.STATE_GATE_DOWN: 0.0,
    Role.STATE_BETA: 0.0,
    Role.FFN_GATE: 1.0,
    Role.FFN_UP: 1.0,
    Role.FFN_DOWN: 1.2,
    # Taken to be as those of dense layers; a router keeps its type, and loses nothing.
    Role.ROUTER: 0.0,
    Role.EXPERTS_IN: 1.0,
    Role.EXPERTS_OUT: 1.2,
    Role.EXPERTS_GATE: 1.0,
    Role.EXPERTS_UP: 1.0,
    Role.EXPERTS_DOWN: 1.2,
    Role.SHARED_GATE: 1.0,
    Role.SHARED_UP: 1.0,
    Role.SHARED_DOWN: 1.2,
    # Rows that are added to embeddings keep their type; the rest is taken to be as its likes are.
    Role.POSITION_EMBEDDING: 0.0,
    Role.TOKEN_TYPE_EMBEDDING: 0.0,
    Role.PER_LAYER_EMBEDDING: 1.0,
    Role.PER_LAYER_PROJECTION: 1.0,
    Role.PER_LAYER_GATE: 0.5,
    Role.PER_LAYER_OUT: 0.7,
    Role.STREAMS_IN: 1.0,
    Role.STREAMS_OUT: 1.0,
    Role.LAUREL_DOWN: 0.5,
    Role.LAUREL_UP: 0.7,
    Role.COMPRESS_ROWS: 1.0,
    Role.COMPRESS_GATE: 1.0,
    Role.INDEX_QUERY: 0.5,
    Role.INDEX_KEY: 0.5,
    Role.INDEX_WEIGHTS: 0.5,
    Role.INDEX_ROWS: 1.0,
    Role.INDEX_GATE: 1.0,
    Role.ATTN_GROUPS: 1.0,
    Role.HYPER_ATTN: 0.0,
    Role.HYPER_FFN: 0.0,
    Role.HYPER_HEAD: 0.0,
    Role.DENSE: 1.0,
    Role.PATCHES: 1.0,
    # Of heads that guess, which have no part in any answer.
    Role.MTP_PROJECTION: 0.0,
    Role.HEAD_FUSION: 0.0,
    Role.HEAD_EMBEDDING: 0.0,
    Role.HEAD_OUTPUT: 0.0,
    Role.HEAD_RETURN: 0.0,
}


def losses_without_text(
    source: Source, types: Mapping[Key, Sequence[str]], progress: Callable[[], None]
) -> Losses:
    """Losses by the error of the weights alone; ``progress`` is called after each matrix."""
    found: Losses = {}
    for role, layer in types:
        weights = _sample(source, role, layer)
        cost = COSTS[role]
        if role == Role.TOKEN_EMBEDDING and source.config.tied_embeddings:
            cost += COSTS[Role.OUTPUT]
        found[role, layer] = {
            name: cost * relative_error(weights, rounded(weights, name, None), None)
            for name in types[role, layer]
        }
        progress()
    return found


def losses_on_text(
    source: Source,
    ids: npt.NDArray[np.integer],
    types: Mapping[Key, Sequence[str]],
    progress: Callable[[], None],
) -> Losses:
    """Losses by the error of outputs on text [windows, tokens], and by measured costs.

    ``progress`` is called twice for each matrix: its errors are known, and its cost.
    """
    found: Losses = {}
    probes: dict[Key, float] = {}

    def measured(
        role: Role, layer: int, weights: Floats, moment: Moment
    ) -> tuple[dict[str, float], float]:
        h = moment.mean()
        sample = weights[_sampled(len(weights))]
        errors = {
            name: relative_error(sample, rounded(sample, name, np.diag(h)), h)
            for name in types[role, layer]
        }
        probe = rounded(sample, probe_of(sample), np.diag(h))
        return errors, relative_error(sample, probe, h)

    def take(role: Role, layer: int, weights: Floats, moment: Moment) -> Floats:
        if (role, layer) not in types:  # it stays as it is
            return weights
        found[role, layer], probes[role, layer] = measured(role, layer, weights, moment)
        progress()
        return weights

    def take_parts(role: Role, layer: int, parts: Iterable[Part]) -> None:
        """The mean of all experts or heads."""
        each = []
        for part in parts:
            if (role, layer) in types:
                each.append(measured(role, layer, part.weights, part.moment))
            part.take(part.weights)
        if not each:
            return
        found[role, layer] = {
            name: float(np.mean([errors[name] for errors, _ in each]))
            for name in types[role, layer]
        }
        probes[role, layer] = float(np.mean([probe for _, probe in each]))
        progress()

    embedding = source(Role.TOKEN_EMBEDDING)
    rows = source.rows(TABLE, ids) if source.config.per_layer_size else None
    text = embedded(source.config, source, embedding[ids], rows)
    head = calibrate(source, text, Quantizer(take, take_parts))
    if source.config.tied_embeddings:
        take(Role.TOKEN_EMBEDDING, 0, embedding, looked_up_too(head))
    else:
        take(Role.TOKEN_EMBEDDING, 0, embedding, _plain(source.config.hidden_size))
        take(Role.OUTPUT, 0, source(Role.OUTPUT), head)
    if source.config.per_layer_size:
        sample = _sample(source, TABLE, 0)
        take(TABLE, 0, sample, _plain(sample.shape[1]))
    for key in types.keys() - found.keys():  # what keeps its type
        found[key] = dict.fromkeys(types[key], 0.0)
        progress()
        progress()
    model = Probed(source, ids[:1, :PROBE_TOKENS])
    for keys in together(probes):
        for key, lost in zip(keys, model.divergences(keys), strict=True):
            cost = lost / max(probes[key], 1e-12)
            found[key] = {name: cost * loss for name, loss in found[key].items()}
            progress()
    return found


def together(keys: Iterable[Key]) -> list[list[Key]]:
    """The matrices of each layer together; those before and behind all layers alone."""
    of_layers: dict[int, list[Key]] = {}
    alone = []
    for role, layer in keys:
        if role in ALONE:
            alone.append([(role, layer)])
        else:
            of_layers.setdefault(layer, []).append((role, layer))
    return [*alone, *of_layers.values()]


def rounded(weights: Floats, name: str, importance: Floats | None) -> Floats:
    """Weights as a type has them."""
    if name in FLOAT_BYTES:
        return decode_rows(name, encode_floats(name, weights), weights.shape[1])
    kind = CODED_TYPES[name]
    table = default_table(kind) if kind.needs_table else None
    known = None if importance is None else np.ascontiguousarray(importance)
    return quantize_by_importance(weights, kind, known, table).decode()


def relative_error(weights: Floats, quantized: Floats, moment: Floats | None) -> float:
    """The squared error of the outputs as a share of their squares."""
    error = weights - quantized
    lost = error if moment is None else error @ moment
    whole = weights if moment is None else weights @ moment
    size = float((weights * whole).sum(dtype=np.float64))
    return float((error * lost).sum(dtype=np.float64)) / size if size > 0 else 0.0


def probe_of(weights: Floats) -> str:
    """The type that a matrix is quantized to alone."""
    return PROBES[0] if weights.shape[1] % 32 == 0 else "f16"


class Probed:
    """A model of which one matrix at a time is quantized; runs only what comes after it."""

    def __init__(self, source: Source, ids: npt.NDArray[np.integer]) -> None:
        self.source, self.ids = source, ids
        self.forward = Forward(source.config, ids.shape[1])
        self.norm = output_norm(source.config, source)
        # Before each layer.
        self.states = [self._begun(None, None)]
        for layer in range(source.config.n_layers):
            self.states.append(self._layer(layer, self.states[-1], None, None))
        self.head = Role.TOKEN_EMBEDDING if source.config.tied_embeddings else Role.OUTPUT
        self.expected = self._predictions(self.states[-1].x, source(self.head))

    def divergences(self, keys: Sequence[Key]) -> list[float]:
        """The mean divergence of predictions, in nats, with each matrix alone as its probe type.

        Matrices of one layer go through the later layers together.
        """
        (first, layer), n = keys[0], len(self.ids)
        if first in ALONE:
            return [self._divergence(first, layer)]
        begun = []
        for role, _ in keys:
            weights = self.source(role, layer)
            probe = rounded(weights, probe_of(weights), None)
            begun.append(self._layer(layer, self.states[layer], role, probe))
        ends = self._through(layer + 1, States.together(begun))
        return [self._lost(ends.part(slice(i * n, i * n + n)), None) for i in range(len(keys))]

    def _divergence(self, role: Role, layer: int) -> float:
        """That of a matrix before or behind all layers."""
        if role == TABLE:
            return self._lost(self._through(0, self._begun(role, None)), None)
        weights = self.source(role, layer)
        probe = rounded(weights, probe_of(weights), None)
        if role == Role.OUTPUT:
            return self._lost(self.states[-1], probe)
        if role == Role.TOKEN_EMBEDDING:
            states = self._through(0, self._begun(role, probe))
            return self._lost(states, probe if role == self.head else None)
        return self._lost(self._through(0, self._begun(role, probe)), None)

    def _lost(self, states: States, head: Floats | None) -> float:
        """The divergence of the last layer's results, with another head if one is given."""
        found = self._predictions(states.x, self.source(self.head) if head is None else head)
        return float((np.exp(self.expected) * (self.expected - found)).sum(axis=-1).mean())

    def _through(self, first: int, states: States) -> States:
        for number in range(first, self.source.config.n_layers):
            states = self._layer(number, states, None, None)
        return states

    def _begun(self, role: Role | None, instead: Floats | None) -> States:
        """The text before the first layer, with one matrix of its ends replaced.

        Of the table only the text's rows are, by what they are rounded to.
        """
        config = self.source.config
        matrices = {role: instead} if role is not None and instead is not None else {}
        if Role.TOKEN_EMBEDDING in matrices:
            vectors = matrices[Role.TOKEN_EMBEDDING][self.ids]
        else:
            vectors = self.source.rows(Role.TOKEN_EMBEDDING, self.ids)
        if not config.per_layer_size:
            return embedded(config, self.source, vectors)
        rows = self.source.rows(TABLE, self.ids)
        if role == TABLE:
            flat = rows.reshape(-1, rows.shape[-1])
            rows = rounded(flat, probe_of(flat), None).reshape(rows.shape)
        states = embedded(config, self.source, vectors, rows)
        projection = matrices.get(Role.PER_LAYER_PROJECTION)
        if projection is None:
            projection = self.source(Role.PER_LAYER_PROJECTION)
        self.forward.begin(states, projection, self.source(Role.PER_LAYER_NORM))
        return states

    def _layer(
        self, layer: int, states: States, role: Role | None, instead: Floats | None
    ) -> States:
        """What comes of a layer's input, which stays as it is, with one matrix replaced."""
        roles = matrices_of(self.source.config, layer)
        matrices = {r: self.source(r, layer) for r in roles if r != role}
        if role is not None and instead is not None:
            matrices[role] = instead
        out = states.apart()
        self.forward.layer(out, matrices, vectors_of(self.source.config, self.source, layer))
        return out

    def _predictions(self, x: Floats, head: Floats) -> npt.NDArray[np.float64]:
        """Logarithms of the probabilities at some positions [positions, vocabulary]."""
        states = self.forward.norm(x[:, ::EVERY], self.norm)
        logits = (states.reshape(-1, states.shape[-1]) @ head.T).astype(np.float64)
        config = self.source.config
        logits *= config.logit_scale
        if config.output_bias:
            logits += self.source(Role.OUTPUT_BIAS)
        if config.logit_softcap:
            logits = config.logit_softcap * np.tanh(logits / config.logit_softcap)
        logits -= logits.max(axis=-1, keepdims=True)
        out: npt.NDArray[np.float64] = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return out


def _plain(size: int) -> Moment:
    return Moment(np.eye(size, dtype=np.float32), 1)


def _sampled(rows: int) -> npt.NDArray[np.intp]:
    """The numbers of rows of a matrix, evenly spaced."""
    return np.linspace(0, rows - 1, min(rows, SAMPLED_ROWS)).astype(np.intp)


def _sample(source: Source, role: Role, layer: int) -> Floats:
    """The sampled rows of a matrix."""
    return source.rows(role, _sampled(source.tensors[role, layer].rows), layer)
