"""A whole model's matrices, quantized one after the other on text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanewise.loading.checkpoint import Role
from lanewise.loading.program import ModelConfig
from lanewise_quantizer.coded import CodedMatrix, CodedType
from lanewise_quantizer.fit.calibrate import Quantizer, calibrate
from lanewise_quantizer.fit.feedback import (
    ROUNDS,
    quantize_by_importance,
    quantize_with_feedback,
)
from lanewise_quantizer.fit.forward import embedded, run
from lanewise_quantizer.fit.hessian import DAMPING
from lanewise_quantizer.fit.mixture import Part
from lanewise_quantizer.fit.moments import Moment, looked_up_too, moment_of
from lanewise_quantizer.fit.source import Source
from lanewise_quantizer.quantize import join_rows

Floats = npt.NDArray[np.float32]

# Of the loss of rounding weights in general, which of every type loses 0.7 or more: what rows lose
# that are on the grid already. The search for scales misses a few; eight bits since cost a tenth.
ON_GRID = np.float32(0.25)
MOVED = np.linspace(0.8, 1.25, 17, dtype=np.float32)  # no multiple of a group is one of 17

FINE_BITS = 6  # from so many on an embedding is rounded: its errors are small beside all others
HEAD_TOKENS = 4096  # of the text, run through the unquantized model for the inputs of a tied head

Kind = Callable[[Role, int], CodedType | None]  # None: the matrix stays as it is
Keep = Callable[[Role, int, Iterable[CodedMatrix]], None]  # parts of the rows, made when asked for
Known = Callable[[Role, int], Floats | None]  # weights of a matrix that is quantized already


@dataclass(frozen=True)
class Plan:
    """What becomes of each matrix, and with how much effort."""

    kind: Kind
    tables: Mapping[str, npt.NDArray[np.int8]]  # by name of the type
    rounds: int = ROUNDS
    damping: float = DAMPING
    known: Known = lambda _role, _layer: None


def quantize_model(source: Source, ids: npt.NDArray[np.integer], plan: Plan, keep: Keep) -> None:
    """Quantize all matrices of a model; ``keep`` is given each, the largest in parts.

    ``ids`` is [windows, tokens] of calibration text. A tied embedding is needed before the inputs
    of the head are known: it is fitted to those of the unquantized model, unless it has six bits
    or more.
    """
    unquantized = _as_it_is(source, ids)
    x = _embedded(source, ids, plan, keep, unquantized)

    def quantize(role: Role, layer: int, weights: Floats, moment: Moment) -> Floats:
        kind = plan.kind(role, layer)
        if kind is None:
            return weights
        known = plan.known(role, layer)
        if known is not None:
            return known
        matrix = _fitted(weights, kind, moment, plan)
        keep(role, layer, [matrix])
        return matrix.decode()

    def quantize_parts(role: Role, layer: int, parts: Iterable[Part]) -> None:
        kind = plan.kind(role, layer)
        known = None if kind is None else plan.known(role, layer)
        if kind is None or known is not None:
            for number, part in enumerate(parts):
                rows = len(part.weights)
                own = known if known is None else known[number * rows : (number + 1) * rows]
                part.take(part.weights if own is None else own)
            return
        keep(role, layer, (_taken(part, kind, plan) for part in parts))

    moment = calibrate(source, x, Quantizer(quantize, quantize_parts), unquantized)
    if source.config.tied_embeddings:
        return
    kind = plan.kind(Role.OUTPUT, 0)
    if kind is not None and plan.known(Role.OUTPUT, 0) is None:
        slabs = source.slabs(Role.OUTPUT)
        keep(Role.OUTPUT, 0, (_fitted(weights, kind, moment, plan) for _, weights in slabs))


def head_moment(source: Source, ids: npt.NDArray[np.integer]) -> Moment:
    """The moment of the head's inputs in the model as it is, on the first windows of ``ids``."""
    windows = ids[: max(1, HEAD_TOKENS // ids.shape[1])]
    return moment_of(run(source.config, source, windows))


class _LookedUp:
    """The vectors of a text's tokens, collected from an embedding whose rows come in slabs."""

    def __init__(self, source: Source, ids: npt.NDArray[np.integer]) -> None:
        self.config = source.config
        self.tokens, places = np.unique(ids, return_inverse=True)
        self.places = places.reshape(ids.shape)
        self.vectors = np.empty((len(self.tokens), source.config.hidden_size), np.float32)

    def within(self, start: int, rows: int) -> tuple[slice, npt.NDArray[np.intp]]:
        """Return where in ``vectors`` the slab that begins at row ``start`` goes, and its rows."""
        first, end = np.searchsorted(self.tokens, (start, start + rows))
        return slice(first, end), self.tokens[first:end] - start

    def states(self) -> Floats:
        """The text's first hidden states [windows, tokens, hidden]."""
        return _states(self.config, self.vectors, self.places)


def _embedded(
    source: Source, ids: npt.NDArray[np.integer], plan: Plan, keep: Keep, unquantized: Floats
) -> Floats:
    """Quantize the embedding; returns the text [windows, tokens, hidden] as it gives it.

    ``unquantized`` is the text as the embedding gave it before.
    """
    kind = plan.kind(Role.TOKEN_EMBEDDING, 0)
    if kind is None:
        return unquantized.copy()
    known = plan.known(Role.TOKEN_EMBEDDING, 0)
    if known is not None:
        return _states(source.config, known, ids)
    moment = None
    if source.config.tied_embeddings and kind.bits < FINE_BITS:
        moment = looked_up_too(head_moment(source, ids))
    looked_up = _LookedUp(source, ids)

    def parts() -> Iterator[CodedMatrix]:
        for start, weights in source.slabs(Role.TOKEN_EMBEDDING):
            if moment is not None:
                part = _fitted(weights, kind, moment, plan)
            else:
                part = quantize_by_importance(weights, kind, None, plan.tables.get(kind.name))
            span, rows = looked_up.within(start, len(weights))
            looked_up.vectors[span] = part.take(rows).decode()
            yield part

    keep(Role.TOKEN_EMBEDDING, 0, parts())
    return looked_up.states()


def _as_it_is(source: Source, ids: npt.NDArray[np.integer]) -> Floats:
    """The text [windows, tokens, hidden] as the unquantized embedding gives it."""
    looked_up = _LookedUp(source, ids)
    for start, weights in source.slabs(Role.TOKEN_EMBEDDING):
        span, rows = looked_up.within(start, len(weights))
        looked_up.vectors[span] = weights[rows]
    return looked_up.states()


def _states(config: ModelConfig, vectors: Floats, ids: npt.NDArray[np.integer]) -> Floats:
    looked_up: Floats = vectors[ids]
    return embedded(config, looked_up)


def _taken(part: Part, kind: CodedType, plan: Plan) -> CodedMatrix:
    """One expert's part of a matrix, which the model then goes on with."""
    matrix = _fitted(part.weights, kind, part.moment, plan)
    part.take(matrix.decode())
    return matrix


def _fitted(weights: Floats, kind: CodedType, moment: Moment, plan: Plan) -> CodedMatrix:
    """A matrix fitted to its inputs, but for rows that lie on the type's grid: they stay there."""
    table = plan.tables.get(kind.name)
    rounded, stays = None, np.zeros(len(weights), bool)
    if not kind.needs_table:  # else no other program had the same
        rounded = quantize_by_importance(weights, kind, np.diag(moment.sum).copy())
        stays = on_grid(weights, rounded)
        if stays.all():
            return rounded
    hessian = moment.hessian(kind, plan.damping)
    wanted = moment.corrected(weights, kind, plan.damping)
    fitted = quantize_with_feedback(wanted, kind, hessian, table, plan.rounds)
    if rounded is None or not stays.any():
        return fitted
    return join_rows([fitted, rounded]).take(np.arange(len(weights)) + len(weights) * stays)


def on_grid(weights: Floats, rounded: CodedMatrix) -> npt.NDArray[np.bool_]:
    """Of which rows the type holds nearly all: another program had rounded them to it.

    The same weights, each moved a little, are on no grid: their loss is what rounding costs.
    """
    kind = rounded.type
    elsewhere = weights * np.resize(MOVED, weights.shape[1])
    usual = elsewhere - quantize_by_importance(elsewhere, kind, None).decode()
    found: npt.NDArray[np.bool_] = _squares(weights - rounded.decode()) < ON_GRID * _squares(usual)
    return found


def _squares(errors: Floats) -> Floats:
    found: Floats = np.einsum("oi,oi->o", errors, errors)
    return found
