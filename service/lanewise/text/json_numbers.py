"""Where the numbers of JSON end: a model that draws digit after digit would go on for ever."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MAX_DIGITS = 17  # as many as tell every double from all others
MAX_EXPONENT_DIGITS = 2
KEPT_BYTES = 64  # of a text's end: more than such a number has
# A number that the end of a text is, or could become.
NUMBER = re.compile(rb"[\s:,\[>]-?([0-9]+(?:\.[0-9]*)?)(?:[eE][+-]?([0-9]*))?$")
# How a token may go on with a number: its digits, and those of its exponent.
MORE = re.compile(rb"([0-9]*(?:\.[0-9]*)?)(?:[eE][+-]?([0-9]*))?")
MORE_EXPONENT = re.compile(rb"[+-]?([0-9]*)")
BEGINS_MORE = b"0123456789.eE+-"


class NumberEnds:
    """Bounds the digits of numbers in the texts of one vocabulary; threads may share it.

    A number within a grammar of JSON ends after ``MAX_DIGITS`` wherever the grammar lets it.
    """

    def __init__(self, tokens: Sequence[bytes], n_words: int) -> None:
        self._tokens = tokens
        self._n_words = n_words
        self._more = [i for i, text in enumerate(tokens) if text and text[0] in BEGINS_MORE]
        # Where it may come, the text is no number.
        self._letter = next((i for i, text in enumerate(tokens) if text == b"a"), None)
        self._longer = lru_cache(MAX_DIGITS + MAX_EXPONENT_DIGITS + 2)(self._make_longer)

    @property
    def start(self) -> bytes:
        """The end of a text that has not begun."""
        return b" "

    def extend(self, end: bytes, tokens: Sequence[int]) -> bytes:
        """The end of a text after more tokens."""
        known = self._tokens
        # Control tokens, which have no bytes, may stand before a number.
        latest = (token for token in tokens[-KEPT_BYTES:] if token < len(known))
        more = b"".join(known[token] or b" " for token in latest)
        return (end + more)[-KEPT_BYTES:]

    def limit(self, end: bytes, mask: NDArray[np.uint32]) -> None:
        """Take tokens with too many digits out of the mask of what may follow a text.

        Where nothing else may come, or where any text may, the mask stays as it is.
        """
        found = NUMBER.search(end) if end[-1:].isdigit() or end[-1] in BEGINS_MORE else None
        letter = self._letter
        if found is None or letter is None or mask[letter // 32] >> np.uint32(letter % 32) & 1:
            return
        digits, exponent = found.groups()
        if exponent is None:
            room, in_exponent = MAX_DIGITS - len(digits) + digits.count(b"."), False
        else:
            room, in_exponent = MAX_EXPONENT_DIGITS - len(exponent), True
        longer = self._longer(max(room, 0), in_exponent)
        kept = mask & ~longer
        if kept.any():
            mask[:] = kept

    def _make_longer(self, room: int, in_exponent: bool) -> NDArray[np.uint32]:
        """A mask of the tokens that go on with a number of which ``room`` digits are left."""
        bits = np.zeros(self._n_words, dtype=np.uint32)
        for token in self._more:
            if _is_longer(self._tokens[token], room, in_exponent):
                bits[token // 32] |= np.uint32(1 << token % 32)
        return bits


def _is_longer(text: bytes, room: int, in_exponent: bool) -> bool:
    if in_exponent:
        found = MORE_EXPONENT.match(text)
        return found is not None and len(found[1]) > room
    found = MORE.match(text)
    if found is None:
        return False
    digits, exponent = found.groups()
    # After a point there must be a digit.
    n_digits = len(digits.replace(b".", b"")) + digits.endswith(b".")
    return n_digits > room or len(exponent or b"") > MAX_EXPONENT_DIGITS
