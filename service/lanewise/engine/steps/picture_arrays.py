"""What a step tells the library of pictures beside rows: positions, and which tokens see ahead."""

import numpy as np

from lanewise.engine.base.positions import Uint32s, positions_at
from lanewise.engine.base.step import Step


def positions_of(step: Step) -> Uint32s | None:
    """Positions on three axes of all tokens of a step; None where they are the places in texts."""
    if not any(turn.sequence.request.pictures for turn in step.turns):
        return None
    parts = [
        positions_at(turn.sequence, turn.sequence.n_cached, turn.count + len(turn.draft))
        for turn in step.turns
    ]
    return np.concatenate(parts, axis=1)


def sees_of(step: Step) -> Uint32s | None:
    """Of each token of a picture how many first tokens of its sequence it sees; 0 of others."""
    if not any(turn.sequence.rows for turn in step.turns):
        return None
    sees = np.zeros(sum(turn.count + len(turn.draft) for turn in step.turns), np.uint32)
    before = 0
    for turn in step.turns:
        first = turn.sequence.n_cached
        for span in turn.sequence.request.pictures:
            start, end = max(first, span.first), min(first + turn.count, span.end)
            if start < end:
                sees[before + start - first : before + end - first] = span.end
        before += turn.count + len(turn.draft)
    return sees
