"""Quantizes the experts of a layer: each on the tokens that its router sends to it.

The router stays as it is and chooses by the inputs that the quantized model before it gives, as it
will when the model is served. An expert that few tokens go to would be fitted to those alone, and
lose all others: below :data:`MIN_TOKENS` others of the text, evenly spaced, are added to its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Experts
from lanewise_quantizer.fit.experts import STACKED, Routes, activate, roles_of, with_bias
from lanewise_quantizer.fit.moments import Moment, moment_of
from lanewise_quantizer.fit.source import Source

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]
Vectors = Mapping[Role, Floats]

MIN_TOKENS = 256  # that each expert is fitted to


@dataclass(frozen=True)
class Part:
    """One expert's or head's part of a matrix of all, and where its quantized weights go."""

    weights: Floats  # [outputs, inputs]
    moment: Moment
    take: Callable[[Floats], None]


# Called with role, layer and the parts of all experts or heads in order, made when they are asked
# for; has each one's ``take`` called before it asks for the next.
QuantizeParts = Callable[[Role, int, Iterable[Part]], None]


class Rows:
    """Normalized rows of one model, where its router sends them, and what its experts make of them.

    Of each expert the rows in ``places`` are computed: its own, and those it is fitted to.
    """

    def __init__(
        self, ffn: Experts, x: Floats, routes: Routes, fitted: list[Places] | None
    ) -> None:
        self.ffn, self.x = ffn, x
        self.own = [routes.tokens_of(expert) for expert in range(ffn.n)]
        if fitted is None:
            fitted = [fitted_tokens(tokens, len(x)) for tokens, _ in self.own]
        self.fitted = fitted
        self.places = [
            np.union1d(tokens, seen) for (tokens, _), seen in zip(self.own, fitted, strict=True)
        ]
        self.factors = [
            self._factors(expert) if ffn.weighs_inputs else None for expert in range(ffn.n)
        ]
        self.inner: list[Floats] = []
        self.out = np.zeros_like(x)

    def _factors(self, expert: int) -> Floats:
        """The weight of each row in ``places``; of rows of others the mean of its own ones."""
        tokens, shares = self.own[expert]
        usual = shares.mean() if len(shares) else 1.0
        found = np.full(len(self.places[expert]), usual, np.float32)
        found[np.searchsorted(self.places[expert], tokens)] = shares
        return found

    def inputs(self, role: Role, expert: int) -> Floats:
        """What an expert's matrix is given for the tokens that it is fitted to."""
        if role != Role.EXPERTS_DOWN:
            return self.x[self.fitted[expert]]
        return self.inner[expert][np.searchsorted(self.places[expert], self.fitted[expert])]

    def run(self, role: Role, expert: int, weights: Floats, vectors: Vectors) -> None:
        """Compute what an expert's matrix gives for all its rows."""
        if role == Role.EXPERTS_DOWN:
            tokens, shares = self.own[expert]
            inner = self.inner[expert][np.searchsorted(self.places[expert], tokens)]
            y = with_bias(self.ffn, inner @ weights.T, vectors, Role.EXPERTS_DOWN_BIAS, expert)
            self.out[tokens] += y if self.ffn.weighs_inputs else shares[:, None] * y
            if self.ffn.down_bias and expert == self.ffn.n - 1:  # once
                self.out += vectors[Role.FFN_DOWN_BIAS]
            return
        y = self.x[self.places[expert]] @ weights.T
        factors = self.factors[expert]
        if factors is not None:
            y *= factors[:, None]
        if role == Role.EXPERTS_GATE:
            self.inner.append(with_bias(self.ffn, y, vectors, Role.EXPERTS_GATE_BIAS, expert))
            return
        y = with_bias(self.ffn, y, vectors, Role.EXPERTS_UP_BIAS, expert)
        if self.ffn.gated:
            self.inner[expert] = activate(self.ffn, self.inner[expert], y)
        else:
            self.inner.append(activate(self.ffn, None, y))


def quantize_experts(
    source: Source,
    layer: int,
    vectors: Vectors,
    rows: Rows,
    beside: Rows | None,
    quantize: QuantizeParts,
) -> None:
    """Quantize a layer's experts; ``rows`` then have what the quantized ones give in ``out``.

    ``beside`` is the model as it is, whose experts are run as they are.
    """
    for role in roles_of(rows.ffn, STACKED):
        quantize(role, layer, _parts(source, role, layer, vectors, rows, beside))


def _parts(
    source: Source,
    role: Role,
    layer: int,
    vectors: Vectors,
    rows: Rows,
    beside: Rows | None,
) -> Iterator[Part]:
    for expert in range(rows.ffn.n):
        weights = source.expert(role, layer, expert)
        unquantized = None if beside is None else beside.inputs(role, expert)
        moment = moment_of(rows.inputs(role, expert), unquantized)
        if beside is not None:
            beside.run(role, expert, weights, vectors)

        def take(made: Floats, expert: int) -> None:
            rows.run(role, expert, made, vectors)

        yield Part(weights, moment, partial(take, expert=expert))


def fitted_tokens(own: Places, n: int) -> Places:
    """The tokens of ``n`` that an expert is fitted to: its own, and then others if they are few."""
    missing = min(MIN_TOKENS, n) - len(own)
    if missing <= 0:
        return own
    others = np.setdiff1d(np.arange(n), own)
    chosen = others[np.linspace(0, len(others) - 1, missing).astype(np.intp)]
    return np.sort(np.concatenate([own, chosen]))
