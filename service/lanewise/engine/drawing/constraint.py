"""Holds one sequence to a grammar: which tokens may come next, and which must."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lanewise.engine.base.request import Grammar, Matcher, SamplingParams
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.stream import EngineError
from lanewise.runtime import Sampled

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Processor time allowed for each token. Ordinary grammars take a tenth of it; the library's limits
# allow thirty times as much. Time above it adds to a debt, time below it reduces the debt.
TOKEN_S = 0.003
MAX_DEBT_S = 0.25  # the largest debt of a grammar, over all of its sequences
# Ambiguous rules cost more as the text grows, slowly at first and then suddenly. So after FIRST
# tokens the allowance is GROWTH times the mean cost of the first ones, but at least MIN_S.
FIRST, GROWTH, MIN_S = 32, 4, 0.001
# The expected cost of a token falls by this factor each token: expensive tokens come in rows.
KEPT = 0.8
# The most that one measurement counts. On a virtual machine, time for which the host stopped the
# guest looks like processor time; a grammar that is really too heavy exceeds its allowance often.
MAX_LOOK_S = 0.03
TOO_HEAVY = f"the grammar takes more than {1000 * TOKEN_S:g} ms for a token again and again"
_ALL = np.uint32(0xFFFF_FFFF)


class ConstraintError(EngineError):
    """A sequence cannot continue within its grammar; the message may be sent to the client."""


class Constraint:
    """The state of one sequence's grammar, a function of the sequence's own tokens alone.

    Where the grammar allows only one continuation, its tokens are not drawn: they are appended at
    once and run through the model together with the token before. With log-probabilities they run
    one at a time, because each token has its own.

    ``allowed`` is the request's own mask. Tokens that end the text are allowed only where the
    grammar may end, so an answer that ends by itself obeys the grammar.
    """

    def __init__(
        self, grammar: Grammar, params: SamplingParams, allowed: NDArray[np.uint32] | None
    ) -> None:
        self._grammar = grammar
        self._matcher: Matcher  # set by ``begin``
        self.mask = np.zeros(grammar.mask_words, dtype=np.uint32)  # of the next draw
        self._address, self._n_bytes = self.mask.ctypes.data, self.mask.nbytes
        n_words = len(self.mask)
        self._eos = _bits(grammar.eos_ids, n_words)
        self._stops = _bits(params.stop_token_ids, n_words)
        # Tokens that the request allows as text; None if only the grammar decides.
        self._text: NDArray[np.uint32] | None = None
        same_ends = params.stop_token_ids == frozenset(grammar.eos_ids)
        if allowed is not None or params.min_tokens or not same_ends:
            self._text = ~(self._eos | self._stops)
        if allowed is not None:
            # The matcher's masks may be a word longer than the model's vocabulary.
            padded = np.pad(allowed, (0, max(0, n_words - len(allowed))))[:n_words]
            self._text = padded & ~(self._eos | self._stops)
        # Stop tokens and tokens with a bias are always drawn, even where the grammar forces them.
        self._never_forced = params.stop_token_ids.union(token for token, _ in params.logit_bias)
        self._one_at_a_time = params.logprobs is not None
        self._coming: deque[int] = deque()  # forced tokens to be drawn one by one
        self.unsent: list[int] = []  # forced tokens before the first draw, not yet sent
        self.finished = False
        self.may_stop = True  # whether the next draw may end an answer that could also continue
        self._failure: ConstraintError | None = None  # raised by ``complete``
        self._n_weighed, self._first_s = 0, 0.0  # count and seconds of the first FIRST tokens
        self._spent_s = 0.0  # since the last call of ``complete``
        self._numbers = grammar.numbers
        self._end = b"" if self._numbers is None else self._numbers.start  # of the text

    def begin(self, room: int) -> list[int]:
        """The tokens that every answer begins with, or ConstraintError for a heavy grammar."""
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
        self, sequence: Scheduled, drawn: Sampled | None
    ) -> tuple[list[Sampled], int, str | None]:
        """Append the tokens that must follow the drawn one, which the sequence has already.

        Returns all tokens that are new to the client, how many of them were forced, and the finish
        reason or None. ConstraintError if no token was possible.
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
        """Accept the drawn token; return the tokens that must follow it, at most ``room``."""
        if self._coming:
            self._coming.popleft()
            self.finished = not self._coming and self._matcher.is_stopped()
            return []
        if self.finished:  # the token drawn ends the text
            return []
        began = time.thread_time()
        if not self._matcher.consume_token(token):
            raise ConstraintError(f"the grammar cannot go on: {self._reason()}")
        self._note((token,))
        tokens = self._jump(room)
        self._weigh(began, 1 + len(tokens))
        return tokens

    def _jump(self, room: int, done: Sequence[int] = ()) -> list[int]:
        """Accept forced tokens, at most ``room`` with those in ``done``."""
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

    def _note(self, tokens: Sequence[int]) -> None:
        if self._numbers is not None:
            self._end = self._numbers.extend(self._end, tokens)

    def _forced(self, room: int) -> list[int]:
        forced = self._matcher.compute_ff_tokens()[:room]
        for i, token in enumerate(forced):
            if token in self._never_forced or not self._is_allowed(token):
                return forced[:i]
        return forced

    def _may_be_forced(self, tokens: Sequence[int]) -> bool:
        return self._never_forced.isdisjoint(tokens) and all(map(self._is_allowed, tokens))

    def _is_allowed(self, token: int) -> bool:
        text = self._text
        return text is None or bool(text[token // 32] >> np.uint32(token % 32) & 1)

    @property
    def forced_token(self) -> int:
        """The token that the next draw must give; -1 where the mask decides."""
        return self._coming[0] if self._coming else -1

    def fill_mask(self) -> None:
        """Compute the mask of the next draw; any thread may, before ``complete`` is called.

        If no token is possible, the mask allows all: ``complete`` then raises and drops the draw.
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
        elif self._matcher.is_stopped():  # the matcher notices only now: only an end may follow
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
        self.mask.fill(_ALL)  # an empty mask would make the draw itself fail

    def _weigh(self, began: float, n_tokens: int) -> None:
        grammar = self._grammar
        if grammar.debt_s <= MAX_DEBT_S:  # a grammar over its limit stays refused
            took = min(time.thread_time() - began, MAX_LOOK_S)
            self._spent_s += took
            each = TOKEN_S
            if self._n_weighed < FIRST:
                self._n_weighed += n_tokens
                self._first_s += took
            else:
                each = min(TOKEN_S, max(MIN_S, GROWTH * self._first_s / self._n_weighed))
            grammar.debt_s = max(0.0, grammar.debt_s + took - n_tokens * each)

    def _reason(self) -> str:
        # Only the first line: the rest shows the library's internal state.
        return (self._matcher.get_error() or self._matcher.stop_reason()).splitlines()[0]


def _unscored(token: int) -> Sampled:
    return Sampled(token, 0.0)


def _bits(ids: Sequence[int] | frozenset[int], n_words: int) -> NDArray[np.uint32]:
    bits = np.zeros(n_words, dtype=np.uint32)
    for token in ids:
        if token < 32 * n_words:
            bits[token // 32] |= np.uint32(1 << token % 32)
    return bits
