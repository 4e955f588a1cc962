"""One sequence: its tokens, its KV blocks and how much of it is computed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from lanewise.engine.base.block_pool import Key, first_key, next_key
from lanewise.engine.base.request import GenerationRequest
from lanewise.runtime import BLOCK_TOKENS, Sampled

Rows = NDArray[np.float32]  # [n][row_floats]


class State(Enum):
    """What the scheduler is doing with a sequence."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class BlockTable:
    """The blocks of a sequence in one group of layers, in text order."""

    blocks: list[int] = field(default_factory=list)
    n_dropped: int = 0  # blocks at the beginning that were given back


@dataclass(eq=False, slots=True)
class Scheduled:
    """A request's sequence in the scheduler."""

    request: GenerationRequest
    tokens: list[int] = field(init=False)
    tables: list[BlockTable] = field(init=False, default_factory=list)  # empty unless it runs
    n_room: int = field(init=False, default=0)  # tokens for which every group has blocks
    table_row: int = field(init=False, default=-1)  # row of the block tables while it runs
    state: State = field(init=False, default=State.WAITING)
    n_prompt: int = field(init=False)
    n_most: int = field(init=False)  # most tokens, prompt included
    stop_ids: frozenset[int] = field(init=False)  # tokens that end it
    group: object = field(init=False, default_factory=object)  # equal for sequences of one request
    n_before: int = field(init=False, default=0)  # tokens of earlier prompts of its request
    tag: tuple[float, int] = field(init=False, default=(0.0, 0))  # order within its client
    n_cached: int = field(init=False, default=0)  # tokens whose keys and values are in the blocks
    n_counted: int = field(init=False, default=0)  # tokens that were counted for its client
    # Tokens that are scored, or need not be: the first of a prompt has no probability.
    n_scored: int = field(init=False, default=1)
    n_to_score: int = field(init=False, default=0)  # first tokens to be scored
    n_admitted: int = field(init=False, default=0)  # its tokens when it was last admitted
    n_preempted: int = field(init=False, default=0)
    n_reused: int = field(init=False, default=0)  # prompt tokens found in the cache
    n_kept: int = field(init=False, default=0)  # blocks in the prefix index
    is_hidden: bool = field(init=False, default=False)  # none of its blocks may be reused
    n_ahead: int = field(init=False, default=0)  # running steps begun ahead that it is part of
    n_pending: int = field(init=False, default=0)  # last tokens, still to be drawn
    # With states: guesses of its last step that came true; the next step passes the number on.
    n_accepted: int = field(init=False, default=0)
    is_complete: bool = field(init=False, default=False)  # its grammar allows no more tokens
    grammar_s: float = field(init=False, default=0.0)  # its grammar's seconds for a token
    rows: dict[int, Rows] = field(init=False, default_factory=dict)  # of pictures, by their number
    last_step: int = field(init=False, default=0)  # with a turn of it, where turns are short
    n_held: int = field(init=False, default=0)  # steps in which it was left out for its grammar
    _keys: list[Key] = field(init=False, default_factory=list)  # of full blocks

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.n_prompt = len(self.tokens)
        self.n_most = self.n_prompt + self.request.params.max_tokens
        self.stop_ids = self.request.params.stop_token_ids
        if self.request.params.prompt_logprobs is not None:
            self.n_to_score = self.n_prompt
            self.n_scored = self.request.params.score_from

    @property
    def n_known(self) -> int:
        """Tokens without the ones that running steps are still to draw."""
        return len(self.tokens) - self.n_pending

    @property
    def n_output(self) -> int:
        """Tokens drawn so far."""
        return self.n_known - self.n_prompt

    @property
    def uncached_len(self) -> int:
        """Tokens that are not computed yet; 1 while decoding."""
        return len(self.tokens) - self.n_cached

    @property
    def is_decoding(self) -> bool:
        """Whether all tokens that it had when it was admitted are computed."""
        return self.n_cached >= self.n_admitted

    @property
    def is_scoring(self) -> bool:
        """Whether log-probabilities of prompt tokens are still to be computed."""
        return self.n_scored < self.n_to_score

    @property
    def n_reusable(self) -> int:
        """Its first tokens that need not be computed where their keys and values are known.

        The logits of the last token are always needed, and all from the first on that score.
        """
        most = len(self.tokens) - 1
        return min(most, self.n_scored - 1) if self.is_scoring else most

    @property
    def draws_more(self) -> bool:
        """Whether another token will be drawn after the last one."""
        return self.n_known < self.n_most and not self.is_complete

    def finish_reason(self, drawn: Sampled | None) -> str | None:
        """The finish reason if the sequence ends with the token drawn last, else None."""
        if self.is_complete:
            return "stop"
        if drawn is not None and drawn.token in self.stop_ids:
            return "stop"
        return None if self.draws_more else "length"

    def block_key(self, index: int) -> Key:
        """The key of a block, all of whose tokens must be known."""
        while len(self._keys) <= index:
            here = len(self._keys)
            self._keys.append(next_key(self.key_before(here), self.block_tokens(here)))
        return self._keys[index]

    def key_before(self, index: int) -> Key:
        """The key of the previous block, or the initial key before the first."""
        return self.block_key(index - 1) if index else self._first_key()

    def block_tokens(self, index: int) -> list[int]:
        """The known tokens whose keys and values belong in a block; of pictures' rows the names."""
        first = index * BLOCK_TOKENS
        tokens = self.tokens[first : first + BLOCK_TOKENS]
        for span in self.request.pictures:
            for place in range(max(first, span.first), min(first + len(tokens), span.end)):
                tokens[place - first] = span.name(place)
        return tokens

    def rows_of(self, first: int, end: int) -> Iterator[tuple[int, Rows]]:
        """The rows that stand for tokens from ``first`` to ``end``, each run with its place."""
        for number, span in enumerate(self.request.pictures):
            start, stop = max(first, span.first), min(end, span.end)
            if start < stop:
                skipped = span.row - span.first
                yield start, self.rows[number][start + skipped : stop + skipped]

    def forget_rows(self, end: int) -> None:
        """Drop rows of pictures that end within the first ``end`` tokens."""
        pictures = self.request.pictures
        for number in [one for one in self.rows if pictures[one].end <= end]:
            del self.rows[number]

    def _first_key(self) -> Key:
        adapter = self.request.adapter
        return first_key(self.request.cache_salt, b"" if adapter is None else adapter.cache_key)

    def scored_by(self, count: int) -> range:
        """Positions of the next ``count`` tokens whose logits score the prompt token after them."""
        if not self.is_scoring:
            return range(0)
        # Tokens scored before a preemption are not scored again.
        first = max(self.n_cached, self.n_scored - 1)
        return range(first, max(first, min(self.n_cached + count, self.n_prompt - 1)))

    def advance(self, count: int) -> None:
        """Note that the next ``count`` tokens are computed."""
        self.n_cached += count
        if self.n_scored < self.n_prompt:
            self.n_scored = max(self.n_scored, min(self.n_cached + 1, self.n_prompt))
