"""A whole model's matrices, quantized one after the other on text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Role
from lanewise_quantizer.coded import CodedMatrix, CodedType
from lanewise_quantizer.fit.calibrate import Quantizer, calibrate
from lanewise_quantizer.fit.feedback import (
    ROUNDS,
    quantize_by_importance,
    quantize_with_feedback,
)
from lanewise_quantizer.fit.forward import embedded, run_on
from lanewise_quantizer.fit.hessian import DAMPING
from lanewise_quantizer.fit.mixture import Part
from lanewise_quantizer.fit.moments import Moment, looked_up_too, moment_of
from lanewise_quantizer.fit.source import Source
from lanewise_quantizer.fit.states import States
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


class Known(Protocol):
    """Returns the weights of a matrix that is quantized already, or rows of it; None: it is not."""

    def __call__(
        self, role: Role, layer: int, rows: npt.NDArray[np.integer] | None = None
    ) -> Floats | None: ...


@dataclass(frozen=True)
class Plan:
    """What becomes of each matrix, and with how much effort."""

    kind: Kind
    tables: Mapping[str, npt.NDArray[np.int8]]  # by name of the type
    rounds: int = ROUNDS
    damping: float = DAMPING
    known: Known = lambda _role, _layer, _rows=None: None


def quantize_model(source: Source, ids: npt.NDArray[np.integer], plan: Plan, keep: Keep) -> None:
    """Quantize all matrices of a model; ``keep`` is given each, the largest in parts.

    ``ids`` is [windows, tokens] of calibration text. A tied embedding is needed before the inputs
    of the head are known: it is fitted to those of the unquantized model, unless it has six bits
    or more.
    """
    unquantized = _as_it_is(source, ids)
    text = _embedded(source, ids, plan, keep)

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

    moment = calibrate(source, text, Quantizer(quantize, quantize_parts), unquantized)
    if source.config.tied_embeddings:
        return
    kind = plan.kind(Role.OUTPUT, 0)
    if kind is not None and plan.known(Role.OUTPUT, 0) is None:
        slabs = source.slabs(Role.OUTPUT)
        keep(Role.OUTPUT, 0, (_fitted(weights, kind, moment, plan) for _, weights in slabs))


def head_moment(source: Source, ids: npt.NDArray[np.integer]) -> Moment:
    """The moment of the head's inputs in the model as it is, on the first windows of ``ids``."""
    windows = ids[: max(1, HEAD_TOKENS // ids.shape[1])]
    return moment_of(run_on(source.config, source, _as_it_is(source, windows)))


class _LookedUp:
    """The rows of a text's tokens, collected from a table whose rows come in slabs."""

    def __init__(self, ids: npt.NDArray[np.integer], cols: int) -> None:
        self.tokens, places = np.unique(ids, return_inverse=True)
        self.places = places.reshape(ids.shape)
        self.vectors = np.empty((len(self.tokens), cols), np.float32)

    def within(self, start: int, rows: int) -> tuple[slice, npt.NDArray[np.intp]]:
        """Return where in ``vectors`` the slab that begins at row ``start`` goes, and its rows."""
        first, end = np.searchsorted(self.tokens, (start, start + rows))
        return slice(first, end), self.tokens[first:end] - start

    def of_text(self) -> Floats:
        """The text's rows [windows, tokens, cols]."""
        found: Floats = self.vectors[self.places]
        return found


def _as_it_is(source: Source, ids: npt.NDArray[np.integer]) -> States:
    """The text as the model's own tables give it."""
    config = source.config
    own = source.rows(Role.PER_LAYER_EMBEDDING, ids) if config.per_layer_size else None
    return embedded(config, source, source.rows(Role.TOKEN_EMBEDDING, ids), own)


def _embedded(source: Source, ids: npt.NDArray[np.integer], plan: Plan, keep: Keep) -> States:
    """Quantize the tables that tokens are looked up in; returns the text as these give it."""
    vectors, own = _looked_up(source, Role.TOKEN_EMBEDDING, ids, plan, keep), None
    if source.config.per_layer_size:
        own = _looked_up(source, Role.PER_LAYER_EMBEDDING, ids, plan, keep)
    return embedded(source.config, source, vectors, own)


def _looked_up(
    source: Source, role: Role, ids: npt.NDArray[np.integer], plan: Plan, keep: Keep
) -> Floats:
    """Quantize a table; returns what it then has of each token [windows, tokens, cols]."""
    kind = plan.kind(role, 0)
    if kind is None:
        return source.rows(role, ids)
    known = plan.known(role, 0, ids)
    if known is not None:
        return known
    is_head = role == Role.TOKEN_EMBEDDING and source.config.tied_embeddings
    moment = None
    if is_head and kind.bits < FINE_BITS:
        moment = looked_up_too(head_moment(source, ids))
    looked_up = _LookedUp(ids, source.tensors[role, 0].cols)

    def parts() -> Iterator[CodedMatrix]:
        for start, weights in source.slabs(role):
            if moment is not None:
                part = _fitted(weights, kind, moment, plan)
            else:
                part = quantize_by_importance(weights, kind, None, plan.tables.get(kind.name))
            span, rows = looked_up.within(start, len(weights))
            looked_up.vectors[span] = part.take(rows).decode()
            yield part

    keep(role, 0, parts())
    return looked_up.of_text()


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
