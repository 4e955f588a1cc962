"""What an answer consists of, whichever dialect it leaves in.

Each token gives one ``Piece``; a dialect writes it at once, or writes the ``Choice`` that all
pieces of an answer make. Both come from the same pieces, so they cannot differ.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lanewise.engine.base.stream import Moments, Sampled


class Thinking(NamedTuple):
    """More of the reasoning before the answer."""

    text: str


class Text(NamedTuple):
    """More of what the answer says."""

    text: str


class CallBegins(NamedTuple):
    """A function is called; ``arguments`` is the beginning of their JSON, if it is known."""

    call: int  # which of the answer's
    id: str
    name: str
    arguments: str


class CallArguments(NamedTuple):
    """More of the JSON of a call's arguments."""

    call: int
    text: str


class End(NamedTuple):
    """The answer is over; nothing of it comes after this."""

    reason: str  # stop | length | tool_calls
    stop: str | None = None  # the stop string that ended it


Event = Thinking | Text | CallBegins | CallArguments | End


class Piece(NamedTuple):
    """What one token adds to an answer; it may be nothing yet, or belong to tokens before it."""

    choice: int  # which answer
    token: Sampled | None  # None only when no token was asked for
    events: Sequence[Event]
    is_first: bool
    prompt_scores: Sequence[Sampled] = ()  # of all tokens but the first, with the first piece


class Progress(NamedTuple):
    """How far the model is with reading a prompt; tokens."""

    total: int
    cached: int
    read: int  # with those
    time_ms: int

    def to_json(self) -> dict[str, int]:
        """In llama.cpp's words."""
        total, cached, read, time_ms = self
        return {"total": total, "cache": cached, "processed": read, "time_ms": time_ms}


@dataclass(slots=True)
class Times:
    """How long what of a request took; all by ``time.monotonic``."""

    arrived: float = field(default_factory=time.monotonic)
    moments: Moments | None = None  # once the engine has it
    last: float = 0.0  # when tokens came

    def tick(self) -> None:
        """More tokens have come."""
        self.last = time.monotonic()

    def progress(self, total: int) -> Progress | None:
        """How much of a prompt is read; None before it is begun."""
        moments = self.moments
        if moments is None or moments.started is None:
            return None
        until = moments.first_token or time.monotonic()
        read = total if moments.first_token is not None else min(moments.n_read, total)
        spent_ms = int(1000 * (until - moments.started))
        return Progress(total, min(moments.n_reused, total), read, spent_ms)

    @property
    def preparing_s(self) -> float:
        """From the request to its first step."""
        return self._started - self.arrived

    @property
    def prompt_s(self) -> float:
        """From the first step to the first token."""
        return self._first_token - self._started

    @property
    def answer_s(self) -> float:
        """From the first token to the last."""
        return max(0.0, self.last - self._first_token)

    @property
    def total_s(self) -> float:
        """From the request to the last token."""
        return max(0.0, self.last - self.arrived)

    @property
    def _started(self) -> float:
        return (self.moments and self.moments.started) or self.arrived

    @property
    def _first_token(self) -> float:
        return (self.moments and self.moments.first_token) or self._started


@dataclass(slots=True)
class Usage:
    """Tokens of a request, as far as it has come."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0  # of the prompts
    image_tokens: int = 0  # of the prompts
    expected_tokens: int | None = None  # by the client; None: nothing is
    accepted_tokens: int = 0  # of those, that the answers have
    thinking_tokens: int | None = None  # may be off by a tag; None: this model does not tell
    times: Times = field(default_factory=Times)


@dataclass(slots=True)
class Call:
    """A call of a function."""

    id: str
    name: str
    arguments: str  # JSON, cut if the answer is


@dataclass(slots=True)
class Choice:
    """One answer, of all its pieces so far."""

    index: int
    keeps_tokens: bool = False
    texts: list[str] = field(default_factory=list)  # of each piece
    thoughts: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    spans: list[list[Event]] = field(default_factory=list)  # all of that in its order
    tokens: list[Sampled | None] = field(default_factory=list)  # of each piece, if they are kept
    keeps_pieces: bool = False
    pieces: list[Piece] = field(default_factory=list)  # if they are kept
    prompt_scores: Sequence[Sampled] = ()
    end: End | None = None
    last_token: int = -1

    @property
    def text(self) -> str:
        """What it says."""
        return "".join(self.texts)

    @property
    def thinking(self) -> str:
        """Its reasoning."""
        return "".join(self.thoughts)

    @property
    def token_ids(self) -> list[int]:
        """Its tokens, if they are kept."""
        return [token.token for token in self.tokens if token is not None]

    @property
    def parts(self) -> list[Event]:
        """All of it in its order, consecutive events of one kind as one; a call is one too."""
        return [_merged(span) for span in self.spans]

    def add(self, piece: Piece) -> None:
        """Take the next piece."""
        text = ""
        for event in piece.events:
            self._keep(event)
            match event:
                case Text(more):
                    text += more
                case Thinking(more):
                    self.thoughts.append(more)
                case CallBegins(_, id_, name, arguments):
                    self.calls.append(Call(id_, name, arguments))
                case CallArguments(index, more):
                    self.calls[index].arguments += more
                case End():
                    self.end = event
        if piece.token is not None:
            self.last_token = piece.token.token
        if self.keeps_pieces:
            self.pieces.append(piece)
        if self.keeps_tokens:
            self.texts.append(text)
            self.tokens.append(piece.token)
        elif text:
            self.texts.append(text)
        if piece.is_first:
            self.prompt_scores = piece.prompt_scores

    def _keep(self, event: Event) -> None:
        match event:
            case End():
                return
            case CallBegins():
                goes_on = False
            case CallArguments():
                goes_on = True
            case _:
                goes_on = bool(self.spans) and type(self.spans[-1][0]) is type(event)
        if goes_on:
            self.spans[-1].append(event)
        else:
            self.spans.append([event])

    def surprise(self) -> float:
        """How unlikely its tokens are, per token; they must be kept."""
        scores = [token.logprob for token in self.tokens if token is not None]
        return -sum(scores) / max(1, len(scores))


def _merged(span: Sequence[Event]) -> Event:
    first = span[0]
    if isinstance(first, CallBegins):
        more = "".join(event.text for event in span[1:] if isinstance(event, CallArguments))
        return first._replace(arguments=first.arguments + more)
    texts = "".join(event.text for event in span if isinstance(event, Text | Thinking))
    return Text(texts) if isinstance(first, Text) else Thinking(texts)
