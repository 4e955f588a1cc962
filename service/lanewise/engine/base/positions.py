"""Positions of tokens on several axes: those of pictures' rows, and of what follows them."""

from collections.abc import Sequence
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from lanewise.engine.base.picture import Picture, Span
from lanewise.engine.base.sequence import Scheduled

Uint32s = NDArray[np.uint32]
AXES = 3


def positions_at(sequence: Scheduled, first: int, count: int) -> Uint32s:
    """Positions of ``count`` tokens from ``first`` on.

    A picture that begins at a position has it on the first axis; on the others its rows and columns
    count from there. What follows is behind the larger of both.
    """
    places = np.arange(first, first + count)
    found = np.tile(places, (AXES, 1))
    for span, start, shift in _starts(sequence.request.pictures):
        behind = places >= span.end
        found[:, behind] = places[behind] + shift
        inside = (places >= span.first) & ~behind
        rows, columns = np.divmod(places[inside] - span.first, grid_of(span.picture)[1])
        found[:, inside] = [np.full(rows.size, start), start + rows, start + columns]
    return found.astype(np.uint32)


def _starts(pictures: Sequence[Span]) -> list[tuple[Span, int, int]]:
    """Of each picture its position, and how far positions behind it differ from places."""
    found, shift = [], 0
    for span in pictures:
        start = span.first + shift
        shift += max(grid_of(span.picture)) - span.n_tokens
        found.append((span, start, shift))
    return found


def grid_of(picture: Picture) -> tuple[int, int]:
    """Rows and columns of a picture's tokens, which are made of squares."""
    side = isqrt(picture.width * picture.height // picture.n_tokens)
    return picture.height // side, picture.width // side
