"""One sequence: its tokens, its KV blocks and how far the cache has got."""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from lanewise.engine.sampling import SamplingParams


class GrowingArray:
    """A uint32 array that grows at its end; views of it cost nothing."""

    __slots__ = ("_data", "_size")

    def __init__(self, values: Items[int] = ()) -> None:
        self._data = np.array(values, dtype=np.uint32)
        self._size = len(self._data)

    def __len__(self) -> int:
        return self._size

    def append(self, value: int) -> None:
        """Add one value; amortised constant time."""
        if self._size == len(self._data):
            self._data = np.concatenate([self._data, np.zeros(max(16, self._size), np.uint32)])
        self._data[self._size] = value
        self._size += 1

    def extend(self, values: Iterable[int]) -> None:
        """Add several values."""
        for value in values:
            self.append(value)

    def clear(self) -> None:
        """Forget all values, keep the memory."""
        self._size = 0

    def view(self) -> NDArray[np.uint32]:
        """The values; valid until the next append."""
        return self._data[: self._size]


class State(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One answer to one prompt, checked: ids in range, prompt and answer within the context."""

    prompt: Items[int]
    params: SamplingParams
    choice: int = 0  # which of the answers to this prompt; part of the key of every draw


@dataclass(eq=False, slots=True)
class Sequence:
    """A request on its way through the scheduler."""

    request: GenerationRequest
    tokens: GrowingArray = field(init=False)
    blocks: GrowingArray = field(init=False)
    state: State = field(init=False, default=State.WAITING)
    n_prompt: int = field(init=False)
    n_cached: int = field(init=False, default=0)  # tokens whose keys and values are in the blocks
    n_scored: int = field(init=False, default=1)  # the first token of a prompt has no probability
    n_preempted: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.tokens = GrowingArray(self.request.prompt)
        self.blocks = GrowingArray()
        self.n_prompt = len(self.tokens)

    @property
    def n_output(self) -> int:
        """Tokens drawn so far."""
        return len(self.tokens) - self.n_prompt

    @property
    def uncached_len(self) -> int:
        """Tokens the model has still to see; 1 while decoding."""
        return len(self.tokens) - self.n_cached

    @property
    def is_scoring(self) -> bool:
        """Whether probabilities of prompt tokens are still to be computed."""
        return self.request.params.prompt_logprobs is not None and self.n_scored < self.n_prompt

    @property
    def draws(self) -> bool:
        """Whether another token is to be drawn after the last one."""
        return self.n_output < self.request.params.max_tokens

    def scored_by(self, count: int) -> range:
        """Positions among the next ``count`` whose logits score the prompt token after each."""
        if not self.is_scoring:
            return range(0)
        # What was scored before a preemption is not scored again.
        first = max(self.n_cached, self.n_scored - 1)
        return range(first, max(first, min(self.n_cached + count, self.n_prompt - 1)))

    def draws_after(self, count: int) -> bool:
        """Whether a token is drawn once the next ``count`` tokens have been seen."""
        return self.draws and count == self.uncached_len

    def advance(self, count: int) -> None:
        """Note that the next ``count`` tokens are in the cache now."""
        self.n_cached += count
        self.n_scored = max(self.n_scored, min(self.n_cached + 1, self.n_prompt))
