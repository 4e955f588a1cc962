"""Holds one sequence to a grammar: which tokens may come next, and which must."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

import numpy as np

from lanewise.engine.request import Grammar, Matcher, SamplingParams
from lanewise.engine.sequence import Sequence
from lanewise.engine.stream import EngineError
from lanewise.runtime import Sampled

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Processor time for each token of each sequence; ordinary grammars take a tenth of it, and the
# library's limits allow thirty times as much. What is more adds up, what is less is taken off.
TOKEN_S = 0.003
MAX_DEBT_S = 0.25  # of all texts of a grammar
# Of rules that can be read in many ways the cost grows with the text, slowly and then at once: what
# is many times a text's first tokens' is too much before it is that much.
FIRST, GROWTH, LEAST_S = 32, 4, 0.001
# How much of what a text's token took is still expected of the next one: heavy ones come in rows.
KEPT = 0.8
# What one look at the clock may count: a guest takes the time that its host stopped it for as
# processor time, and no grammar is condemned for that. One that is heavy is so again and again.
MAX_LOOK_S = 0.03
TOO_HEAVY = f"the grammar takes more than {1000 * TOKEN_S:g} ms for a token again and again"
_ALL = np.uint32(0xFFFF_FFFF)


class ConstraintError(EngineError):
    """A sequence cannot go on within its grammar; the message is fit for its client."""


class Constraint:
    """The state of one sequence's grammar, a function of the sequence's own tokens alone.

    Where the grammar leaves only one way to go on, the tokens of that way are not drawn: they are
    appended at once, and the model sees them together with the token before. With
    log-probabilities the same tokens go through the model one at a time, because each has one.

    ``allowed`` is the request's own mask. Tokens that end the text come where the grammar may end
    and nowhere else, so that what ends by itself obeys the grammar.
    """

    def __init__(
        self, grammar: Grammar, params: SamplingParams, allowed: NDArray[np.uint32] | None
    ) -> None:
        self._grammar = grammar
        self._matcher: Matcher  # from ``begin`` on
        self.mask = np.zeros(grammar.mask_words, dtype=np.uint32)  # of the next draw
        self._address, self._n_bytes = self.mask.ctypes.data, self.mask.nbytes
        n_words = len(self.mask)
        self._eos = _bits(grammar.eos_ids, n_words)
        self._stops = _bits(params.stop_token_ids, n_words)
        # Tokens that the request lets be text; None if that is up to the grammar alone.
        self._text: NDArray[np.uint32] | None = None
        same_ends = params.stop_token_ids == frozenset(grammar.eos_ids)
        if allowed is not None or params.min_tokens or not same_ends:
            self._text = ~(self._eos | self._stops)
        if allowed is not None:
            # The matcher's masks may be a word longer than the model's vocabulary.
            padded = np.pad(allowed, (0, max(0, n_words - len(allowed))))[:n_words]
            self._text = padded & ~(self._eos | self._stops)
        # A token that the request has a word about is drawn, even where it seems to be forced.
        self._never_forced = params.stop_token_ids.union(token for token, _ in params.logit_bias)
        self._one_at_a_time = params.logprobs is not None
        self._coming: deque[int] = deque()  # forced tokens that are to be drawn
        self.unsent: list[int] = []  # forced tokens that come before the first draw
        self.finished = False
        self.may_stop = True  # whether the next draw may end an answer that could go on
        self._failure: ConstraintError | None = None  # of the last mask
        self._n_weighed, self._first_s = 0, 0.0  # of the first tokens
        self._spent_s = 0.0  # since the token before the last one
        self._numbers = grammar.numbers
        self._end = b"" if self._numbers is None else self._numbers.start  # of the text so far

    def begin(self, room: int) -> list[int]:
        """The tokens that every answer begins with, at most ``room``."""
        if self._grammar.debt_s > MAX_DEBT_S:
            raise ConstraintError(TOO_HEAVY)
        began = time.thread_time()
        beginning = self._grammar.beginning
        if beginning and len(beginning) <= room and self._may_be_forced(beginning):
            self._matcher = self._grammar.begun_matcher()
            self._note(beginning)
            self.unsent = self._jump(room, beginning)
        else:
            self._matcher = self._grammar.new_matcher()
            self.unsent = self._jump(room)
        self._weigh(began, 1 + len(self.unsent))
        return self.unsent

    def complete(
        self, sequence: Sequence, drawn: Sampled | None
    ) -> tuple[list[Sampled], int, str | None]:
        """Append what must follow the token drawn last, which the sequence has already.

        Returns all tokens that are new to the client, how many of them were forced, and why the
        sequence ends if it does; ConstraintError if no token could come.
        """
        if self._failure is not None:
            raise self._failure
        sequence.grammar_s = max(self._spent_s, KEPT * sequence.grammar_s)
        self._spent_s = 0.0
        forced, self.unsent = self.unsent, []
        reason = sequence.finish_reason(drawn)
        after: list[int] = []
        if drawn is not None and reason != "stop":
            room = sequence.request.params.max_tokens - sequence.n_output
            after = self.take(drawn.token, room)
            sequence.tokens += after
            sequence.is_complete = self.finished
            reason = sequence.finish_reason(None)
        tokens = [_unscored(token) for token in forced]
        tokens += [] if drawn is None else [drawn]
        tokens += [_unscored(token) for token in after]
        return tokens, len(forced) + len(after), reason

    def take(self, token: int, room: int) -> list[int]:
        """Note the token drawn last; return those that must follow it, at most ``room``."""
        if self._coming:
            self._coming.popleft()
            self.finished = not self._coming and self._matcher.is_stopped()
            return []
        if self.finished:  # what was drawn is the end
            return []
        began = time.thread_time()
        if not self._matcher.consume_token(token):
            raise ConstraintError(f"the grammar cannot go on: {self._reason()}")
        self._note((token,))
        tokens = self._jump(room)
        self._weigh(began, 1 + len(tokens))
        return tokens

    def _jump(self, room: int, done: Items[int] = ()) -> list[int]:
        """Take what is forced, at most ``room`` tokens with those that are done already."""
        tokens = list(done)
        while len(tokens) < room and not self._matcher.is_stopped():
            forced = self._forced(room - len(tokens))
            if not forced or not self._matcher.consume_tokens(forced):
                break
            self._note(forced)
            tokens += forced
        if self._matcher.is_error():
            raise ConstraintError(f"the grammar cannot go on: {self._reason()}")
        if self._one_at_a_time:
            self._coming.extend(tokens)
            tokens = []
        self.finished = not self._coming and self._matcher.is_stopped()
        return tokens

    def _note(self, tokens: Items[int]) -> None:
        if self._numbers is not None:
            self._end = self._numbers.extend(self._end, tokens)

    def _forced(self, room: int) -> list[int]:
        forced = self._matcher.compute_ff_tokens()[:room]
        for i, token in enumerate(forced):
            if token in self._never_forced or not self._is_allowed(token):
                return forced[:i]
        return forced

    def _may_be_forced(self, tokens: Items[int]) -> bool:
        return self._never_forced.isdisjoint(tokens) and all(map(self._is_allowed, tokens))

    def _is_allowed(self, token: int) -> bool:
        text = self._text
        return text is None or bool(text[token // 32] >> np.uint32(token % 32) & 1)

    @property
    def forced_token(self) -> int:
        """The token that the next draw must give; -1 where the mask decides."""
        return self._coming[0] if self._coming else -1

    def fill_mask(self) -> None:
        """Compute the mask of the next draw, on any thread, until ``complete`` is called.

        If no token may come, any can be drawn: what is drawn then counts for nothing.
        """
        if self._coming:
            return
        if self._grammar.debt_s > MAX_DEBT_S:
            self._fail(TOO_HEAVY)
            return
        began = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(self._address, self._n_bytes)
        if self._numbers is not None:
            self._numbers.limit(self._end, self.mask)
        self._weigh(began, 1)
        if self._matcher.is_error():
            self._fail(f"the grammar cannot go on: {self._reason()}")
        elif self._matcher.is_stopped():  # found only now: nothing but the end may come
            self.finished = True
        elif self._text is not None:
            self._apply_request(self._text)

    def _apply_request(self, text: NDArray[np.uint32]) -> None:
        mask, may_end = self.mask, self._matcher.is_accepting()
        mask &= text
        if mask.any():
            if may_end and self.may_stop:
                mask |= self._stops
        elif may_end:
            mask |= self._eos | self._stops
            self.finished = True
        else:
            self._fail("no token is allowed by both the grammar and the request's own fields")

    def _fail(self, message: str) -> None:
        self._failure = ConstraintError(message)
        self.mask.fill(_ALL)  # an empty one would be an error of the draw

    def _weigh(self, began: float, n_tokens: int) -> None:
        grammar = self._grammar
        if grammar.debt_s <= MAX_DEBT_S:  # else it stays what it is
            took = min(time.thread_time() - began, MAX_LOOK_S)
            self._spent_s += took
            each = TOKEN_S
            if self._n_weighed < FIRST:
                self._n_weighed += n_tokens
                self._first_s += took
            else:
                each = min(TOKEN_S, max(LEAST_S, GROWTH * self._first_s / self._n_weighed))
            grammar.debt_s = max(0.0, grammar.debt_s + took - n_tokens * each)

    def _reason(self) -> str:
        # Only the first line: the rest shows the library's state.
        return (self._matcher.get_error() or self._matcher.stop_reason()).splitlines()[0]


def _unscored(token: int) -> Sampled:
    return Sampled(token, 0.0)


def _bits(ids: Items[int] | frozenset[int], n_words: int) -> NDArray[np.uint32]:
    bits = np.zeros(n_words, dtype=np.uint32)
    for token in ids:
        if token < 32 * n_words:
            bits[token // 32] |= np.uint32(1 << token % 32)
    return bits
