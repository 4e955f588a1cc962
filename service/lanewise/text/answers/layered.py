"""What holds a text to something beside its grammar: all else is passed on to that."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from lanewise.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from lanewise.text.grammar import CompiledGrammar
    from lanewise.text.json_numbers import NumberEnds

    Below: TypeAlias = "CompiledGrammar | LayeredGrammar"


class LayeredGrammar(ABC):
    """A grammar whose texts obey something more; without one any text that obeys that."""

    def __init__(self, grammar: Below | None, tokenizer: Tokenizer, n_tokens: int) -> None:
        self._grammar = grammar
        self.tokenizer = tokenizer
        # Without a grammar the request's own ends are all there are.
        self.eos_ids: Sequence[int] = () if grammar is None else grammar.eos_ids
        self.mask_words: int = (n_tokens + 31) // 32 if grammar is None else grammar.mask_words
        self.beginning: Sequence[int] = () if grammar is None else grammar.beginning
        self.numbers: NumberEnds | None = None if grammar is None else grammar.numbers
        self._debt_s = 0.0

    @property
    def below(self) -> Below | None:
        """The grammar under this one."""
        return self._grammar

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

    @abstractmethod
    def over(self, inner: LLMatcher | LayeredMatcher | None) -> LayeredMatcher:
        """A matcher of this over one of the grammar."""

    def new_matcher(self) -> LayeredMatcher:
        """A matcher that has seen nothing."""
        return self.over(None if self._grammar is None else self._grammar.new_matcher())

    def begun_matcher(self) -> LayeredMatcher:
        """A matcher that has seen the beginning."""
        made = self.over(None if self._grammar is None else self._grammar.begun_matcher())
        made.note(self.beginning)
        return made


class LayeredMatcher(ABC):
    """Follows one text beside the grammar's own matcher."""

    def __init__(self, inner: LLMatcher | LayeredMatcher | None) -> None:
        self._inner = inner

    @abstractmethod
    def note(self, tokens: Sequence[int]) -> None:
        """These came."""

    def consume_token(self, token: int) -> bool:
        """Whether the text may go on with this."""
        return self.consume_tokens([token])

    def consume_tokens(self, tokens: Sequence[int]) -> bool:
        """The same of several."""
        if self._inner is not None and not self._inner.consume_tokens(list(tokens)):
            return False
        self.note(tokens)
        return True

    def compute_ff_tokens(self) -> list[int]:
        """The tokens that must come next."""
        return [] if self._inner is None else self._inner.compute_ff_tokens()

    def unsafe_compute_mask_ptr(self, address: int, n_bytes: int) -> None:
        """Write the mask of the next token to an address."""
        if self._inner is None:
            ctypes.memset(address, 0xFF, n_bytes)
        else:
            self._inner.unsafe_compute_mask_ptr(address, n_bytes)

    def is_stopped(self) -> bool:
        """Whether nothing may come."""
        return self._inner is not None and self._inner.is_stopped()

    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return self._inner is None or self._inner.is_accepting()

    def is_error(self) -> bool:
        """Whether the text cannot go on."""
        return self._inner is not None and self._inner.is_error()

    def get_error(self) -> str:
        """Why."""
        return "" if self._inner is None else self._inner.get_error()

    def stop_reason(self) -> str:
        """The same in a word."""
        return "" if self._inner is None else self._inner.stop_reason()


def ids_of(text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a text inside an answer, of which control tokens are tokens."""
    ids: list[int] = []
    for part in tokenizer.split_special(text):
        ids += [part] if isinstance(part, int) else tokenizer.encode_inside(part)
    return ids
