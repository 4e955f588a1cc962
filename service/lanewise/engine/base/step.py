"""A step: what each sequence does in it, and the budget of tokens and rows of logits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lanewise.engine.base.block_pool import BlockCopy
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.snapshots import StateCopy
from lanewise.runtime import NativeError

NO_POSITIONS = range(0)


@dataclass(slots=True)
class Turn:
    """The part of one sequence in a step."""

    sequence: Scheduled
    count: int  # tokens the model sees, without guesses
    scored: range  # positions whose logits score the prompt token after each
    ends_in_draw: bool  # whether a token is drawn after the last of them
    draft: Sequence[int] = ()  # guessed tokens, run after the others
    n_accepted: int = 0  # accepted guesses, once the step has run
    end: int | None = None  # computed tokens after it; None until begun ahead or recorded
    n_told: int = 0  # ``n_accepted`` before, as a step begun ahead was told
    snapshot: int | None = None  # the place to which the state is copied (states.py)
    snapshot_end: int = 0  # tokens that this state has seen
    error: NativeError | None = None  # of the first failed draw; results end before it

    @property
    def n_computed(self) -> int:
        """Tokens that the step adds to the cache, without failed guesses."""
        return self.count + self.n_accepted


@dataclass(slots=True)
class Step:
    """The turns that are run as one batch."""

    turns: list[Turn]
    preempted: list[Scheduled] = field(default_factory=list)
    admitted: list[Scheduled] = field(default_factory=list)
    tokens_left: int = 0  # of the budget
    logits_left: int = 0
    background_rows: int = 0  # rows of the background beside rows of others

    @property
    def n_tokens(self) -> int:
        """Rows of the batch, without guesses."""
        return sum(turn.count for turn in self.turns)

    @property
    def is_background(self) -> bool:
        """Whether all of it is in the background."""
        return not self.background_rows and all(
            turn.sequence.request.is_background for turn in self.turns
        )

    @property
    def n_counted(self) -> int:
        """Rows of the batch without the background's: guesses must not slow these."""
        return self.n_tokens - self.background_rows


class Copies(NamedTuple):
    """Copies that a step makes before it runs."""

    blocks: list[BlockCopy]
    states: Sequence[StateCopy] = ()


def by_adapter(turns: list[Turn]) -> list[Turn]:
    """Group turns of the same adapter: the library multiplies neighbours together."""
    if all(turn.sequence.request.adapter is None for turn in turns):
        return turns
    return sorted(turns, key=_adapter_number)


def _adapter_number(turn: Turn) -> int:
    adapter = turn.sequence.request.adapter
    return 0 if adapter is None else adapter.number


class Budget:
    """The tokens and rows of logits that one step may still take."""

    def __init__(
        self,
        tokens: int,
        logits: int,
        cut: Callable[[Scheduled, int], int] | None = None,
        *,
        whole_pictures: bool = False,
    ) -> None:
        """``cut`` limits how many of its next tokens a sequence runs; None: no limit.

        With ``whole_pictures`` a step has all tokens of a picture or none, and rather more tokens
        than were left to it than never all.
        """
        self.tokens = tokens
        self._room = tokens
        self._whole_pictures = whole_pictures
        self.logits = logits
        self._cut = cut
        self.turns: list[Turn] = []
        self.n_decodes = 0  # at the front of the turns

    @property
    def is_left(self) -> bool:
        return self.tokens > 0 and self.logits > 0

    def leave(self, tokens: int) -> None:
        """Allow at most ``tokens`` more tokens."""
        self.tokens = min(self.tokens, tokens)

    def spend_on(self, sequence: Scheduled) -> None:
        # Called for every sequence between two steps: the properties of Scheduled and min() would
        # take a third longer.
        n_tokens = len(sequence.tokens)
        if sequence.n_pending and n_tokens == sequence.n_most:
            return  # its last token is being drawn
        count = uncached = n_tokens - sequence.n_cached
        if self._cut is not None:
            count = self._cut(sequence, count)
        if count > self.tokens:
            count = self.tokens
        if self._whole_pictures and sequence.rows:
            count = self._with_whole_pictures(sequence, count)
        scored = NO_POSITIONS
        if sequence.n_scored < sequence.n_to_score:
            without_logits = max(0, sequence.n_scored - 1 - sequence.n_cached)
            count = min(count, without_logits + self.logits)
            scored = sequence.scored_by(count)
        elif self.logits == 0:
            count = min(count, uncached - 1)  # the last token needs logits, and waits
        if count == 0:
            return
        ends_in_draw = count == uncached and n_tokens < sequence.n_most and not sequence.is_complete
        self.turns.append(Turn(sequence, count, scored, ends_in_draw))
        self.tokens = max(0, self.tokens - count)
        self._room -= count
        self.logits -= len(scored) + ends_in_draw

    def _with_whole_pictures(self, sequence: Scheduled, count: int) -> int:
        """How many of its next tokens a sequence runs so that no picture is divided."""
        first = sequence.n_cached
        for span in sequence.request.pictures:
            if span.first < first + count < span.end or (not count and span.first == first):
                whole = span.end - first
                return whole if whole <= self._room else max(0, span.first - first)
        return count
