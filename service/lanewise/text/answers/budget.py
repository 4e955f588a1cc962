"""A budget of reasoning: when it is spent, the tag that ends reasoning is what comes next."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from lanewise.text.answers.layered import LayeredGrammar, LayeredMatcher, ids_of
from lanewise.text.answers.thinking import Start, ThinkingTags
from lanewise.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from lanewise.text.answers.layered import Below


class ThinkingControl:
    """What an answer's client may say while it is written: that its reasoning ends."""

    __slots__ = ("__weakref__", "has_ended")

    def __init__(self) -> None:
        self.has_ended = False  # set by any thread; each next token of reasoning looks


class Budget(NamedTuple):
    """At most so many tokens of an answer, which begins with ``start``, are between tags."""

    tokens: int
    tags: ThinkingTags
    start: Start
    control: ThinkingControl


class BudgetedGrammar(LayeredGrammar):
    """A grammar whose texts keep a budget; without one any text that keeps it."""

    def __init__(
        self, grammar: Below | None, budget: Budget, tokenizer: Tokenizer, n_tokens: int
    ) -> None:
        super().__init__(grammar, tokenizer, n_tokens)
        self.budget = budget
        self.closing = ids_of(budget.tags.end, tokenizer)

    def over(self, inner: LLMatcher | LayeredMatcher | None) -> BudgetMatcher:
        """A matcher that has spent nothing."""
        return BudgetMatcher(self, inner)


class BudgetMatcher(LayeredMatcher):
    """Follows one text: counts its reasoning, and ends it when the budget is spent."""

    def __init__(self, grammar: BudgetedGrammar, inner: LLMatcher | LayeredMatcher | None) -> None:
        super().__init__(inner)
        self._token_bytes = grammar.tokenizer.token_bytes
        self._begin = grammar.budget.tags.begin.encode()
        self._end = grammar.budget.tags.end.encode()
        self._left = grammar.budget.tokens
        self._control = grammar.budget.control
        self._closing = grammar.closing
        self._coming: list[int] = []  # what is left of the tag
        self._text = b""  # the end of what came, as far as tags are looked for in it
        self._start = grammar.budget.start
        if self._start is Start.THOUGHT:
            self._spend(0)

    def note(self, tokens: Sequence[int]) -> None:
        """These came."""
        for token in tokens:
            if self._start is Start.CONTENT:
                return
            if self._coming and token == self._coming[0]:
                del self._coming[0]
                if not self._coming:
                    self._start = Start.CONTENT
            else:
                self._read(self._token_bytes(token))

    def _read(self, more: bytes) -> None:
        self._text += more
        if self._start is Start.OPEN:
            text = self._text.lstrip()
            if not text.startswith(self._begin):
                if not self._begin.startswith(text):
                    self._start = Start.CONTENT
                return
            self._start, self._text = Start.THOUGHT, text[len(self._begin) :]
            self._spend(1 if self._text else 0)
            return
        if self._end in self._text:
            self._start = Start.CONTENT
            return
        self._text = self._text[-len(self._end) :]
        self._spend(1)

    def _spend(self, n_tokens: int) -> None:
        self._left -= n_tokens
        if (self._left <= 0 or self._control.has_ended) and not self._coming:
            self._coming = list(self._closing)

    def compute_ff_tokens(self) -> list[int]:
        """The tokens that must come next."""
        return list(self._coming) or super().compute_ff_tokens()

    def unsafe_compute_mask_ptr(self, address: int, n_bytes: int) -> None:
        """Write the mask of the next token to an address."""
        if not self._coming:
            super().unsafe_compute_mask_ptr(address, n_bytes)
            return
        ctypes.memset(address, 0, n_bytes)
        word, bit = divmod(self._coming[0], 32)
        ctypes.c_uint32.from_address(address + 4 * word).value = 1 << bit

    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return not self._coming and super().is_accepting()
