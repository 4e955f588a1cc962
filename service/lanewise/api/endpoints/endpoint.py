"""What an endpoint is: a path, what answers there, and what the documentation says of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from lanewise.api.endpoints.absent import (
    BY_KIND,
    MODEL,
    NO_TEXT,
    NOTHING_KEPT,
    Absent,
    reason_of,
    refusal_of,
)
from lanewise.api.generation import path
from lanewise.api.generation.dialect import Dialect
from lanewise.api.http.error_forms import OPENAI, ErrorForm
from lanewise.api.openapi.answers import OF_BODIES, Answer
from lanewise.api.openapi.shapes import Schema
from lanewise.api.shared.state import ServerState

Body = type[BaseModel]
Given = Answer | Schema  # a schema: of JSON that is not streamed
Answering = Callable[[Request, ServerState], Awaitable[Response]]
Speaking = Callable[[Request, ServerState, Dialect[Any]], Awaitable[Response]]
ANSWER: Speaking = path.answer
COUNTING_TOKENS = ("/v1/messages/count_tokens", "/v1/responses/input_tokens")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path, what answers there, and the schemas of its body and its answer.

    Where API keys are configured every endpoint wants one, unless it says ``public``.
    """

    path: str
    summary: str
    answer: Answering
    gives: Given | None = None  # None: nothing but errors
    body: Body | None = None
    public: bool = False
    verb: str | None = None  # where the body does not say it
    errors: ErrorForm = OPENAI  # here and below this path
    also: tuple[int, ...] = ()  # statuses of errors that its fields do not tell
    is_missing: bool = False  # it does nothing but say why it does nothing
    speaks: bool = False  # it answers in a dialect
    unless: Absent | None = None  # what is said where the model is not of the kind for it
    keeps: bool = False  # it needs the data directory
    computes: bool = False  # a model reads texts for it, and it speaks no dialect

    @classmethod
    def speaking(
        cls, path_: str, dialect: Dialect[Any], gives: Given, do: Speaking = ANSWER
    ) -> Self:
        """An endpoint that answers what is asked in a dialect, or does something else with it."""

        async def answer(request: Request, state: ServerState) -> Response:
            return await do(request, state, dialect)

        answer.__name__, answer.__doc__ = dialect.name, f"{dialect.summary}."
        return cls(
            path_,
            dialect.summary,
            answer,
            gives,
            dialect.body,
            errors=dialect.errors,
            speaks=True,
            unless=NO_TEXT,
        )

    @classmethod
    def missing(cls, path_: str, name: str, reason: str, verb: str = "POST") -> Self:
        """An endpoint of another server's that does nothing but say why it does nothing."""

        async def answer(_: Request, state: ServerState) -> Response:
            raise refusal_of(path_.split("/{")[0], reason, state)

        answer.__name__ = name
        answer.__doc__ = f"Not supported: {reason.replace(MODEL, 'the model')}."
        return cls(path_, "Not supported", answer, verb=verb, is_missing=True)

    @property
    def method(self) -> str:
        """The method of HTTP."""
        return self.verb or ("GET" if self.body is None else "POST")

    @property
    def is_counted(self) -> bool:
        """Whether requests count for the limits of their key: those for which a model computes."""
        if self.body is None or self.path in COUNTING_TOKENS:
            return False
        return self.speaks or self.computes or self.unless in BY_KIND

    def statuses(self, form: ErrorForm) -> list[int]:
        """Of the errors that it may answer with, which have this form."""
        found = {*self.also, *form.also}
        if self.is_missing or self.keeps or self.unless is not None:
            found.add(501)
        if self.body is not None:
            found.update(OF_BODIES)
        if not self.public:
            found.update((401, 503))
        return sorted(found)

    async def serve(self, request: Request) -> Response:
        """What a router calls."""
        return await self.reply(request, request.app.state.server)

    async def reply(self, request: Request, state: ServerState) -> Response:
        """Answer, or say why this server, or a model of this kind, cannot."""
        if self.keeps and state.files is None:
            raise refusal_of(self.path.split("/{")[0], NOTHING_KEPT, state)
        absent = self.unless
        if absent is not None and not absent.has(state.pooling):
            raise refusal_of(self.path.split("/{")[0], reason_of(absent, state), state)
        return await self.answer(request, state)
