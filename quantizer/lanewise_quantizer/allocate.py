"""Chooses a type for each matrix: the least loss within some bytes, or few bytes for a loss."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
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


def few_bytes(
    options: Mapping[Key, Sequence[Option]], most_loss: float, budget: float
) -> dict[Key, Option]:
    """Return an option for each matrix that together lose ``most_loss`` at most, in few bytes.

    From the smallest on, the step that saves most loss for a byte is taken until the loss is small
    enough, or the next step does not fit the budget. Then what the last steps saved too much is
    given back.
    """
    chosen = {key: min(found, key=lambda o: o.n_bytes) for key, found in options.items()}
    loss = sum(option.loss for option in chosen.values())
    size = sum(option.n_bytes for option in chosen.values())
    steps: list[tuple[float, int, Key, Option]] = []
    numbers = count()  # of equal steps the first is taken

    def add_step(key: Key) -> None:
        now = chosen[key]
        larger = [
            ((now.loss - option.loss) / (option.n_bytes - now.n_bytes), option)
            for option in options[key]
            if option.n_bytes > now.n_bytes and option.loss < now.loss
        ]
        if larger:
            saved, option = max(larger, key=lambda step: step[0])
            heappush(steps, (-saved, next(numbers), key, option))

    for key in options:
        add_step(key)
    while steps and loss > most_loss:
        _, _, key, option = heappop(steps)
        now = chosen[key]
        if size + option.n_bytes - now.n_bytes > budget:
            break
        loss += option.loss - now.loss
        size += option.n_bytes - now.n_bytes
        chosen[key] = option
        add_step(key)
    spare = most_loss - loss
    for key in sorted(options, key=lambda key: -chosen[key].n_bytes):
        now = chosen[key]
        fitting = [one for one in options[key] if one.loss - now.loss <= max(spare, 0)]
        chosen[key] = min([now, *fitting], key=lambda option: option.n_bytes)
        spare -= chosen[key].loss - now.loss
    return chosen


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
