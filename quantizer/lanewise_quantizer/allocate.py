"""Chooses a type for each matrix so that all together lose least within a number of bytes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Key = TypeVar("Key", bound=Hashable)

STEPS = 1 << 14  # sizes are told apart by so many parts of the budget


@dataclass(frozen=True)
class Option:
    """One type that a matrix can have."""

    type: str
    n_bytes: int
    loss: float


def choose(options: Mapping[Key, Sequence[Option]], budget: int) -> dict[Key, Option]:
    """Return an option for each matrix; ValueError if even the smallest do not fit the budget.

    A knapsack with one item of each kind, by dynamic programming over sizes rounded to a part of
    the budget: the best there is but for that rounding.
    """
    least = sum(min(option.n_bytes for option in found) for found in options.values())
    if least > budget:
        raise ValueError(f"{budget} bytes; {least} are needed at least")
    unit = max(1, budget // STEPS)
    room = budget
    while True:
        chosen = _choose(options, room // unit, unit)
        size = sum(option.n_bytes for option in chosen.values())
        if size <= budget:
            return chosen
        room -= max(size - budget, unit)  # what rounding let through


def _choose(options: Mapping[Key, Sequence[Option]], room: int, unit: int) -> dict[Key, Option]:
    best = np.zeros(room + 1)  # the least loss within so many units
    picks: list[npt.NDArray[np.int16]] = []
    for found in options.values():
        least = np.full(room + 1, np.inf)
        pick = np.full(room + 1, -1, np.int16)
        for number, option in enumerate(found):
            size = option.n_bytes // unit  # rounded down: the sum is checked exactly
            if size > room:
                continue
            losses = best[: room + 1 - size] + option.loss
            better = losses < least[size:]
            least[size:][better] = losses[better]
            pick[size:][better] = number
        best = least
        picks.append(pick)
    at = room
    chosen: dict[Key, Option] = {}
    for key, pick in zip(reversed(list(options)), reversed(picks), strict=True):
        if pick[at] < 0:  # the exact sizes fit; nothing but the smallest does
            return {k: min(found, key=lambda o: o.n_bytes) for k, found in options.items()}
        chosen[key] = options[key][pick[at]]
        at -= chosen[key].n_bytes // unit
    return chosen
