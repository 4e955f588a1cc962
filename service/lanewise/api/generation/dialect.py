"""What a dialect is: how a body becomes an ``Ask``, and how an answer's pieces become bytes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from lanewise.api.errors import ApiError
from lanewise.api.generation.ask import Ask
from lanewise.api.generation.events import Choice, Piece, Progress, Usage
from lanewise.api.generation.logprobs import TokenNames
from lanewise.api.generation.receipts import Receipts
from lanewise.api.http.error_forms import OPENAI, ErrorForm
from lanewise.api.schemas import Strict
from lanewise.engine.base.picture import Span

M = TypeVar("M", bound=Strict)


class Prompt(NamedTuple):
    """What the model continues; ``text`` as the client gave it, if it gave text."""

    ids: list[int]
    text: str | None = None
    pictures: Sequence[Span] = ()  # among the ids


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a dialect may tell of an answer beside its pieces."""

    ask: Ask
    prompts: Sequence[Prompt]
    id: str  # of this answer; dialects put a prefix before it
    created: int  # seconds since 1970
    model: str  # as the client calls it
    context: int  # tokens that prompt and answer may have together
    fingerprint: str
    usage: Usage  # grows
    names: TokenNames
    receipts: Receipts | None = None  # of the answers, if they are wanted and can be had

    def prompt_of(self, choice: int) -> Prompt:
        """What an answer continues."""
        return self.prompts[choice // self.ask.n_drawn]


class Wire(Protocol):
    """Writes one answer; either as it comes, with the first four, or with the last.

    An instance serves one request and may remember what it has written.
    """

    def first(self) -> Iterable[str]:
        """What comes before any piece."""

    def piece(self, piece: Piece) -> Iterable[str]:
        """What one piece adds; nothing if it has nothing to say."""

    def last(self) -> Iterable[str]:
        """What ends a stream."""

    def failed(self, error: ApiError) -> Iterable[str]:
        """What ends a stream when its answer cannot be finished."""

    def whole(self, choices: Sequence[Choice]) -> Iterable[str]:
        """The answer in one piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect(Generic[M]):
    """One form of asking and answering; ``ask`` and ``wire`` do nothing but translate."""

    name: str  # of the function, in the API's documentation
    summary: str
    body: type[M]
    ask: Callable[[M], Ask]  # ApiError if a body that its schema allows makes no sense
    wire: Callable[[About], Wire]
    # Bytes of what a body refers to, which ``ask`` then reads; ApiError if it is not here.
    look_up: Callable[[M], int] = lambda body: 0
    repeats: bool = False  # the ends of an answer have in them what the request brought
    in_order: bool = False  # whole answers are made of their pieces, not of what these add up to
    # How far the model is with a prompt, as a part of a stream; None: it is not told.
    progress: Callable[[Any, Progress], str] | None = None
    media_type: str = "text/event-stream"  # of streams
    keep_alive: bytes = b": keep-alive\n\n"  # while a stream has nothing to say; empty: nothing
    errors: ErrorForm = OPENAI
