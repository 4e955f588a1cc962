"""What the engine is asked for: one answer to one prompt, how it is drawn, and what it obeys."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lanewise.engine.adapters import LoadedAdapter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What a request says about drawing; every value has been checked before."""

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
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt

    @property
    def has_penalties(self) -> bool:
        """Whether drawing depends on the tokens so far."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


class NumberLimit(Protocol):
    """Keeps numbers from going on for ever; knows a text by its last bytes."""

    @property
    def start(self) -> bytes:
        """Of a text that has not begun."""

    def extend(self, end: bytes, tokens: Items[int]) -> bytes:
        """Those after more tokens."""

    def limit(self, end: bytes, mask: NDArray[np.uint32]) -> None:
        """Take what may not follow out of a mask, of which something is left."""


class Matcher(Protocol):
    """One text of a grammar, as it grows."""

    def consume_token(self, token: int) -> bool:
        """Whether the text may go on with this."""

    def consume_tokens(self, tokens: list[int]) -> bool:
        """The same of several."""

    def compute_ff_tokens(self) -> list[int]:
        """The tokens that must come next."""

    def unsafe_compute_mask_ptr(self, address: int, n_bytes: int) -> None:
        """Write the mask of the next token to an address."""

    def is_stopped(self) -> bool:
        """Whether nothing may come."""

    def is_accepting(self) -> bool:
        """Whether the text may end here."""

    def is_error(self) -> bool:
        """Whether the text cannot go on."""

    def get_error(self) -> str:
        """Why."""

    def stop_reason(self) -> str:
        """The same in a word."""


class Grammar(Protocol):
    """A compiled grammar, shared by every sequence that has to obey it."""

    @property
    def eos_ids(self) -> Items[int]:
        """Tokens that end a text where the grammar may end."""

    @property
    def beginning(self) -> Items[int]:
        """Tokens that every text begins with."""

    debt_s: float  # what tokens of any sequence have taken too long

    @property
    def numbers(self) -> NumberLimit | None:
        """Bounds the numbers in a text; None if it has none of JSON."""

    @property
    def mask_words(self) -> int:
        """32-bit words of a mask with one bit for each token."""

    def new_matcher(self) -> Matcher:
        """A matcher that has seen nothing."""

    def begun_matcher(self) -> Matcher:
        """A matcher that has seen the beginning."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One answer to one prompt, checked: ids in range, prompt and answer within the context."""

    prompt: Items[int]
    params: SamplingParams
    choice: int = 0  # which of the answers to this prompt; part of the key of every draw
    cache_salt: str = ""  # requests share cached prefixes only with those of the same salt
    priority: int = 0  # lower is served earlier
    client: int = 0  # whose request it is: clients of equal priority are served in turn
    max_draft: int | None = None  # most guessed tokens in one step; None = the engine's own limit
    grammar: Grammar | None = None  # which the answer obeys
    adapter: LoadedAdapter | None = None
    expected: Items[int] = ()  # the answer as the caller expects it; changes how fast it comes
