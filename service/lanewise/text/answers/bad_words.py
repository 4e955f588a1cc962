"""Words that an answer never has: of their tokens the last one is not drawn behind the others."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from lanewise.text.answers.layered import LayeredGrammar, LayeredMatcher, ids_of
from lanewise.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from lanewise.text.answers.layered import Below


class CleanGrammar(LayeredGrammar):
    """A grammar whose texts have none of some words."""

    def __init__(
        self, grammar: Below | None, words: Iterable[str], tokenizer: Tokenizer, n_tokens: int
    ) -> None:
        super().__init__(grammar, tokenizer, n_tokens)
        # At the beginning of a text, and behind other words.
        texts = (space + word.lstrip() for word in words for space in ("", " "))
        spelled = (ids_of(text, tokenizer) for text in texts)
        self.banned = tuple(dict.fromkeys(tuple(ids) for ids in spelled if ids))
        if CleanMatcher(self.banned, None).first_bad(self.beginning) is not None:
            self.beginning = ()

    def over(self, inner: LLMatcher | LayeredMatcher | None) -> CleanMatcher:
        """A matcher that has seen nothing."""
        return CleanMatcher(self.banned, inner)


class CleanMatcher(LayeredMatcher):
    """Follows one text: knows by its last tokens which may not come next."""

    def __init__(
        self, banned: Sequence[tuple[int, ...]], inner: LLMatcher | LayeredMatcher | None
    ) -> None:
        super().__init__(inner)
        self._banned = banned
        self._n_kept = max(map(len, banned), default=1) - 1
        self._last: tuple[int, ...] = ()  # tokens of the text, as many as matter
        self._is_stuck = False  # nothing is left that may come next

    def note(self, tokens: Sequence[int]) -> None:
        """These came."""
        if self._n_kept:
            self._last = (*self._last, *tokens)[-self._n_kept :]

    def _ends(self, last: tuple[int, ...]) -> Iterator[int]:
        """Tokens that would end a word behind these."""
        for ids in self._banned:
            n_before = len(ids) - 1
            if n_before <= len(last) and last[len(last) - n_before :] == ids[:-1]:
                yield ids[-1]

    def first_bad(self, tokens: Sequence[int]) -> int | None:
        """The place of the first of some tokens that must not come."""
        last = self._last
        for i, token in enumerate(tokens):
            if token in self._ends(last):
                return i
            last = (*last, token)
        return None

    def compute_ff_tokens(self) -> list[int]:
        """The tokens that must come next, up to one that must not."""
        found = super().compute_ff_tokens()
        return found[: self.first_bad(found)]

    def unsafe_compute_mask_ptr(self, address: int, n_bytes: int) -> None:
        """Write the mask of the next token to an address."""
        super().unsafe_compute_mask_ptr(address, n_bytes)
        for token in self._ends(self._last):
            word, bit = divmod(token, 32)
            if 4 * word < n_bytes:
                ctypes.c_uint32.from_address(address + 4 * word).value &= ~(1 << bit) & 0xFFFFFFFF
        nothing = ctypes.string_at(address, n_bytes).count(0) == n_bytes
        self._is_stuck = nothing and not self.is_stopped()

    def is_error(self) -> bool:
        """Whether the text cannot go on."""
        return self._is_stuck or super().is_error()

    def get_error(self) -> str:
        """Why."""
        if self._is_stuck and not super().is_error():
            return "bad_words leaves no token that the form of the answer allows"
        return super().get_error()
