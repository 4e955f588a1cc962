"""Guesses how a text continues from the earlier occurrence of its last tokens (prompt lookup).

Answers that edit, quote or fill in the prompt repeat long pieces of it. The index is that of LZ77
compressors: a table from the hash of two tokens to the latest place after them, and a chain from
each place to the previous one with the same hash. Adding a token and finding a match take constant
time. Memory is a few bytes a token.
"""

from array import array
from collections.abc import Sequence

import numpy as np

MAX_PLACES = 6  # earlier places of the same two tokens to compare, newest first
MAX_PLACES_ELSEWHERE = 24  # the same when the indexed text is another one
MAX_MATCH = 12  # tokens; a longer match is not measured further
_FIRST, _SECOND = 0x9E3779B1, 0x85EBCA77  # odd, as in multiplicative hashing


class PromptLookup:
    """An index of one growing text."""

    __slots__ = ("_before", "_heads", "_mask")

    def __init__(self, prompt: Sequence[int], n_output: int) -> None:
        """Index ``prompt``; about ``n_output`` more tokens will follow."""
        size = 1 << min(16, max(8, (len(prompt) + n_output).bit_length()))
        self._mask = size - 1
        self._heads, self._before = _index(prompt, size)

    def copy(self) -> "PromptLookup":
        """An independent copy of the index."""
        other = PromptLookup.__new__(PromptLookup)
        other._mask, other._heads, other._before = self._mask, self._heads[:], self._before[:]
        return other

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Where the longest repeated end of ``tokens`` stood before; ``tokens`` is the grown text.

        Returns the place after it and its length in tokens; the length is 0 when there is none.
        """
        self._catch_up(tokens)
        return self._longest(tokens, tokens, MAX_PLACES)

    def find_in(self, indexed: Sequence[int], tokens: Sequence[int]) -> tuple[int, int]:
        """The same for the end of another text: ``indexed`` is the text that was indexed."""
        return self._longest(indexed, tokens, MAX_PLACES_ELSEWHERE)

    def _longest(self, indexed: Sequence[int], tokens: Sequence[int], most: int) -> tuple[int, int]:
        end = len(tokens)
        if end < 3:
            return 0, 0
        slot = (tokens[-2] * _FIRST + tokens[-1] * _SECOND >> 8) & self._mask
        place = self._heads[slot]
        best_place = best_length = 0
        for _ in range(most):
            if not place:
                break
            length = 0
            longest = min(MAX_MATCH, place, end)
            while length < longest and indexed[place - 1 - length] == tokens[end - 1 - length]:
                length += 1
            if length > best_length:
                best_place, best_length = place, length
                if length == MAX_MATCH:
                    break
            place = self._before[place]
        return (best_place, best_length) if best_length > 1 else (0, 0)

    def _catch_up(self, tokens: Sequence[int]) -> None:
        """Index all places before the end; the end itself must not match itself."""
        heads, before = self._heads, self._before
        for place in range(len(before), len(tokens)):
            slot = 0
            if place > 1:
                hashed = tokens[place - 2] * _FIRST + tokens[place - 1] * _SECOND
                slot = (hashed >> 8) & self._mask
                before.append(heads[slot])
                heads[slot] = place
            else:
                before.append(0)


def _index(prompt: Sequence[int], size: int) -> tuple["array[int]", "array[int]"]:
    """Heads and chains for all places before the end of ``prompt``."""
    heads = np.zeros(size, np.uint32)
    before = np.zeros(max(len(prompt), 1), np.uint32)
    if len(prompt) > 2:
        ids = np.array(prompt, np.uint64)
        hashed = ids[:-2] * np.uint64(_FIRST) + ids[1:-1] * np.uint64(_SECOND)
        slots = (hashed >> np.uint64(8) & np.uint64(size - 1)).astype(np.uint32)
        order = np.argsort(slots, kind="stable")
        same = slots[order[1:]] == slots[order[:-1]]
        before[order[1:][same] + 2] = order[:-1][same] + 2
        is_last = np.append(~same, True)
        heads[slots[order[is_last]]] = order[is_last] + 2
    return array("I", heads.tobytes()), array("I", before.tobytes())


class Expected:
    """The index of a text that a client expects as the answer (OpenAI's ``prediction``).

    All answers of the request share it. The text is no part of the prompt; where the answer
    repeats it, tokens come faster.
    """

    __slots__ = ("_lookup", "tokens")

    def __init__(self, prompt: Sequence[int], expected: Sequence[int]) -> None:
        # The answer begins after the prompt, so the prompt's last tokens must match as well.
        self.tokens = [*prompt[-MAX_MATCH:], *expected]
        self._lookup = PromptLookup(self.tokens, 0)

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """The place in ``self.tokens`` after the longest match of ``tokens``' end; its length."""
        return self._lookup.find_in(self.tokens, tokens)
