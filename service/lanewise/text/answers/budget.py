"""A budget of reasoning: when it is spent, the tag that ends reasoning is what comes next."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from lanewise.text.answers.thinking import Start, ThinkingTags
from lanewise.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from lanewise.text.grammar import CompiledGrammar
    from lanewise.text.json_numbers import NumberEnds


class Budget(NamedTuple):
    """At most so many tokens of an answer, which begins with ``start``, are between tags."""

    tokens: int
    tags: ThinkingTags
    start: Start


class BudgetedGrammar:
    """A grammar whose texts keep a budget; without one any text that keeps it."""

    def __init__(
        self, grammar: CompiledGrammar | None, budget: Budget, tokenizer: Tokenizer, n_tokens: int
    ) -> None:
        self._grammar = grammar
        self.budget = budget
        self.tokenizer = tokenizer
        self.closing = _ids(budget.tags.end, tokenizer)
        self.eos_ids: Sequence[int] = (
            tuple(sorted(tokenizer.eos_ids)) if grammar is None else grammar.eos_ids
        )
        self.mask_words = (n_tokens + 31) // 32 if grammar is None else grammar.mask_words
        self.beginning = () if grammar is None else grammar.beginning
        self.numbers: NumberEnds | None = None if grammar is None else grammar.numbers
        self._debt_s = 0.0

    @property
    def debt_s(self) -> float:
        """What tokens of any text have taken too long: the grammar's."""
        return self._debt_s if self._grammar is None else self._grammar.debt_s

    @debt_s.setter
    def debt_s(self, debt_s: float) -> None:
        if self._grammar is None:
            self._debt_s = debt_s
        else:
            self._grammar.debt_s = debt_s

    def new_matcher(self) -> BudgetMatcher:
        """A matcher that has seen nothing."""
        return BudgetMatcher(self, None if self._grammar is None else self._grammar.new_matcher())

    def begun_matcher(self) -> BudgetMatcher:
        """A matcher that has seen the beginning."""
        made = BudgetMatcher(self, None if self._grammar is None else self._grammar.begun_matcher())
        made.note(self.beginning)
        return made


class BudgetMatcher:
    """Follows one text: counts its reasoning, and ends it when the budget is spent."""

    def __init__(self, grammar: BudgetedGrammar, inner: LLMatcher | None) -> None:
        self._inner = inner
        self._token_bytes = grammar.tokenizer.token_bytes
        self._begin = grammar.budget.tags.begin.encode()
        self._end = grammar.budget.tags.end.encode()
        self._left = grammar.budget.tokens
        self._closing = grammar.closing
        self._coming: list[int] = []  # what is left of the tag
        self._text = b""  # the end of what came, as far as tags are looked for in it
        self._start = grammar.budget.start
        if self._start is Start.THOUGHT:
            self._spend(0)

    def consume_token(self, token: int) -> bool:
        """Whether the text may go on with this."""
        return self.consume_tokens([token])

    def consume_tokens(self, tokens: Sequence[int]) -> bool:
        """The same of several."""
        if self._inner is not None and not self._inner.consume_tokens(list(tokens)):
            return False
        self.note(tokens)
        return True

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
        if self._left <= 0 and not self._coming:
            self._coming = list(self._closing)

    def compute_ff_tokens(self) -> list[int]:
        """The tokens that must come next."""
        if self._coming:
            return list(self._coming)
        return [] if self._inner is None else self._inner.compute_ff_tokens()

    def unsafe_compute_mask_ptr(self, address: int, n_bytes: int) -> None:
        """Write the mask of the next token to an address."""
        if self._inner is not None and not self._coming:
            self._inner.unsafe_compute_mask_ptr(address, n_bytes)
            return
        ctypes.memset(address, 0 if self._coming else 0xFF, n_bytes)
        if self._coming:
            word, bit = divmod(self._coming[0], 32)
            ctypes.c_uint32.from_address(address + 4 * word).value = 1 << bit

    def is_stopped(self) -> bool:
        """Whether nothing may come."""
        return self._inner is not None and self._inner.is_stopped()

    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return not self._coming and (self._inner is None or self._inner.is_accepting())

    def is_error(self) -> bool:
        """Whether the text cannot go on."""
        return self._inner is not None and self._inner.is_error()

    def get_error(self) -> str:
        """Why."""
        return "" if self._inner is None else self._inner.get_error()

    def stop_reason(self) -> str:
        """The same in a word."""
        return "" if self._inner is None else self._inner.stop_reason()


def _ids(tag: str, tokenizer: Tokenizer) -> list[int]:
    ids: list[int] = []
    for part in tokenizer.split_special(tag):
        ids += [part] if isinstance(part, int) else tokenizer.encode_inside(part)
    return ids
