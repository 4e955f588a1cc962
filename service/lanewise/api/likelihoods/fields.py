"""What bodies say that ask how likely given continuations are."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from lanewise.api.conversations import Messages
from lanewise.api.schemas import FirstProblemOnly, Strict, Strings, TokenIds, refuse

Labels = Annotated[Strings, Field(min_length=1)]


class Shared(Strict):
    """What all of them may say."""

    model: str | None = None
    messages: Annotated[Messages, Field(min_length=1)] | None = Field(
        None, description="A conversation, whose answer it is about."
    )
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    return_token_ids: bool = Field(False, description="Of prompts and of what follows them.")
    cache_salt: str | None = Field(
        None, min_length=1, description="Only requests with the same salt share cached prefixes."
    )
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="Lower is served earlier.")


class Question(Strict):
    """One of several questions about the same texts."""

    labels: Labels
    instruction: str | None = None
    name: str | None = Field(None, description="Told with its answers.")


class LabelFields(Shared):
    """Which labels a model that writes text chooses from, and what it is asked."""

    labels: Labels | None = Field(
        None, description="The classes, for a model that writes text: it has none of its own."
    )
    instruction: str | None = Field(
        None, description="Put behind each text; without it the labels are listed there."
    )
    questions: Annotated[list[Question], FirstProblemOnly(), Field(min_length=1)] | None = Field(
        None, description="Several, each with labels: what is before them is computed once."
    )

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if self.questions is not None:
            for name in ("labels", "instruction", "messages"):
                if getattr(self, name) is not None:
                    raise refuse(name, "not together with questions, which have their own")
        if self.messages is not None and self.instruction is not None:
            raise refuse("instruction", "not together with messages, which say it themselves")
        return self


class ContinuationFields(Shared):
    """A prompt and what may follow it."""

    prompt: str | TokenIds | None = None
    continuations: (
        Annotated[
            list[str | TokenIds],
            FirstProblemOnly(),
            Field(min_length=1, description="Texts or token ids that may follow."),
        ]
        | None
    ) = None
