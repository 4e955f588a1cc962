"""What the engine is asked for: one answer to one prompt, its sampling and its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lanewise.engine.base.adapters import LoadedAdapter
from lanewise.engine.base.picture import Span

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The sampling fields of a request, already checked."""

    seed: int
    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = (
        None  # alternatives reported beside each token; None = no log-probabilities
    )
    # Tokens that are reported beside the first instead of the likeliest, at most 20.
    logprob_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None  # alternatives of the prompt's tokens
    # The first of them that is scored; what is before it may come from the prefix cache.
    score_from: int = 1

    @property
    def has_penalties(self) -> bool:
        """Whether drawing depends on the tokens so far."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


class NumberLimit(Protocol):
    """Keeps numbers in JSON from growing for ever; knows a text by its last bytes."""

    @property
    def start(self) -> bytes:
        """The last bytes of a text that has not begun."""

    def extend(self, end: bytes, tokens: Sequence[int]) -> bytes:
        """The last bytes after more tokens."""

    def limit(self, end: bytes, mask: NDArray[np.uint32]) -> None:
        """Remove from a mask the tokens that may not follow; at least one stays."""


class Matcher(Protocol):
    """The state of one text within a grammar."""

    def consume_token(self, token: int) -> bool:
        """Accept a token; false if the text may not continue with it."""

    def consume_tokens(self, tokens: list[int]) -> bool:
        """Accept several tokens."""

    def compute_ff_tokens(self) -> list[int]:
        """The tokens that must come next."""

    def unsafe_compute_mask_ptr(self, address: int, n_bytes: int) -> None:
        """Write the mask of the next token to a memory address."""

    def is_stopped(self) -> bool:
        """Whether no token may follow."""

    def is_accepting(self) -> bool:
        """Whether the text may end here."""

    def is_error(self) -> bool:
        """Whether the matcher has failed."""

    def get_error(self) -> str:
        """The error as text."""

    def stop_reason(self) -> str:
        """The reason in one word."""


class Grammar(Protocol):
    """A compiled grammar, shared by all sequences that must obey it."""

    @property
    def eos_ids(self) -> Sequence[int]:
        """Tokens that end a text where the grammar may end."""

    @property
    def beginning(self) -> Sequence[int]:
        """Tokens that every text begins with."""

    debt_s: float  # seconds by which all sequences' tokens have exceeded their allowance

    @property
    def numbers(self) -> NumberLimit | None:
        """The bound for numbers in a text; None if the grammar has no JSON numbers."""

    @property
    def mask_words(self) -> int:
        """32-bit words of a mask with one bit for each token."""

    def new_matcher(self) -> Matcher:
        """A matcher at the start of a text."""

    def begun_matcher(self) -> Matcher:
        """A matcher after the grammar's beginning."""


# The least priority of requests in the background, whose answers no client waits for: higher than
# any that clients may ask for. They get only what is free, and give it up at once.
BACKGROUND = 1 << 40


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One answer to one prompt, checked: ids in range, prompt and answer within the context."""

    prompt: Sequence[int]
    params: SamplingParams
    choice: int = 0  # number of this answer to its prompt; part of every draw's random key
    cache_salt: str = ""  # cached prefixes are shared only between requests of the same salt
    priority: int = 0  # lower is served earlier; from BACKGROUND on in the background
    client: int = 0  # number of the client; clients of equal priority are served in turn
    max_draft: int | None = None  # most guessed tokens in one step; None = the engine's own limit
    grammar: Grammar | None = None  # that the answer must obey
    adapter: LoadedAdapter | None = None
    pictures: Sequence[Span] = ()  # in the prompt's order, of each the ids are placeholders
    expected: Sequence[int] = ()  # the answer that the client expects; changes only the speed

    @property
    def is_background(self) -> bool:
        """Whether everybody else goes first."""
        return self.priority >= BACKGROUND
