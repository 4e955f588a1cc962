"""``/v1/systemone``: typed questions about a state, answered with probabilities.

The protocol is TypeSafe's, which llama-server and others speak for models that were made for it.
Here any model that writes text answers: it reads state, question and options in a prompt, and the
signs of the options are scored as labels are.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag
from starlette.requests import Request
from starlette.responses import Response

from lanewise.api.conversations import Message
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.body import read_request
from lanewise.api.generation.call import Call
from lanewise.api.generation.measuring import check_priority
from lanewise.api.generation.writing import dumps_long
from lanewise.api.likelihoods.prompts import chat_prompt, continuation_ids, text_prompt
from lanewise.api.likelihoods.scoring import Continued, Place, Scores, likelihoods, shares
from lanewise.api.schemas import FirstProblemOnly, Strict, by_type
from lanewise.api.shared.request_budgets import check_count
from lanewise.api.shared.state import ServerState

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_OPTIONS = 255
YES, NO = "yes", "no"
Text = str | dict[str, Any] | list[Any]  # what is no text is shown as JSON


class Asking(Strict, ABC):
    """What every question has."""

    instructions: Text

    @property
    @abstractmethod
    def signs(self) -> list[str]:
        """What the model answers with, of each option."""

    @property
    @abstractmethod
    def lines(self) -> list[str]:
        """What the model reads of the options, and how it is to answer."""

    @abstractmethod
    def told(self, probs: Sequence[float]) -> dict[str, Any]:
        """The answer, of the probabilities of its options."""


class NoulCriteria(Strict):
    """When a statement is true, and when it is not."""

    true: Text | None = None
    false: Text | None = None


class Noul(Asking):
    """Yes or no."""

    type: Literal["noul"]
    criteria: NoulCriteria = Field(default_factory=NoulCriteria)

    @property
    def signs(self) -> list[str]:
        """Two words."""
        return [YES, NO]

    @property
    def lines(self) -> list[str]:
        """Each with its criterion, if there is one."""
        given = ((YES, self.criteria.true), (NO, self.criteria.false))
        shown = [f"{sign}: {_shown(text)}" for sign, text in given if text is not None]
        return [*shown, f"Answer with {YES} or {NO} alone."]

    def told(self, probs: Sequence[float]) -> dict[str, Any]:
        """The probability of yes."""
        return {"type": self.type, "noul": probs[0]}


class Choice(Asking):
    """One of several options, in no order."""

    type: Literal["choice"]
    criteria: Annotated[dict[str, Text | None], Field(min_length=1, max_length=MAX_OPTIONS)] = (
        Field(description="Options, each with what it means or null.")
    )

    @property
    def signs(self) -> list[str]:
        """A letter for each; two where one does not suffice."""
        count = len(self.criteria)
        if count <= len(LETTERS):
            return list(LETTERS[:count])
        return [LETTERS[i // len(LETTERS)] + LETTERS[i % len(LETTERS)] for i in range(count)]

    @property
    def lines(self) -> list[str]:
        """Each option behind its letter."""
        pairs = zip(self.signs, self.criteria.items(), strict=True)
        shown = [
            f"{sign}. {name}" + ("" if text is None else f": {_shown(text)}")
            for sign, (name, text) in pairs
        ]
        return [*shown, "Answer with the letter of the best option alone."]

    def told(self, probs: Sequence[float]) -> dict[str, Any]:
        """The likeliest, and how likely all are."""
        names = list(self.criteria)
        return {
            "type": self.type,
            "choice": names[probs.index(max(probs))],
            "probabilities": dict(zip(names, probs, strict=True)),
            "confidence": confidence_of_choice(probs),
        }


class Score(Asking):
    """A place among levels that have an order, from the lowest."""

    type: Literal["score"]
    criteria: Annotated[list[Text], FirstProblemOnly(), Field(min_length=2, max_length=10)]

    @property
    def signs(self) -> list[str]:
        """Digits."""
        return [str(level) for level in range(len(self.criteria))]

    @property
    def lines(self) -> list[str]:
        """Each level behind its digit."""
        shown = [f"{level}. {_shown(text)}" for level, text in enumerate(self.criteria)]
        return [*shown, "Answer with the number of the level that fits best alone."]

    def told(self, probs: Sequence[float]) -> dict[str, Any]:
        """The expected level, which may be between two."""
        return {
            "type": self.type,
            "score": sum(level * share for level, share in enumerate(probs)),
            "legend": dict(zip(self.signs, self.criteria, strict=True)),
            "probabilities": dict(zip(self.signs, probs, strict=True)),
            "confidence": confidence_of_score(probs),
        }


AnyQuestion = Annotated[
    Annotated[Noul, Tag("[noul]")]
    | Annotated[Choice, Tag("[choice]")]
    | Annotated[Score, Tag("[score]")],
    by_type(),
]


class SystemOneRequest(Strict):
    """Body of ``POST /v1/systemone``."""

    harmless: ClassVar[frozenset[str] | None] = frozenset(("user", "metadata"))
    lacked: ClassVar[frozenset[str]] = frozenset(("images", "files", "videos"))

    state: Text = Field(description="What the questions are about: text, or JSON.")
    questions: dict[str, AnyQuestion] = Field(min_length=1)
    model: str | None = None
    images: list[Any] = Field(default_factory=list, description="Not read: must be empty.")
    files: list[Any] = Field(default_factory=list, description="Not read: must be empty.")
    videos: list[Any] = Field(default_factory=list, description="Not read: must be empty.")
    cache_salt: str | None = Field(
        None, min_length=1, description="Only requests with the same salt share cached prefixes."
    )
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="Lower is served earlier.")


async def systemone(request: Request, state: ServerState) -> Response:
    """Answers to typed questions about a state, with their probabilities."""
    call = await read_request(request, state, SystemOneRequest)
    body = call.ask
    check_priority(call, body.priority)
    for name in ("images", "files", "videos"):
        if getattr(body, name):
            raise BadRequestError(f"{name}: none are read here; accepted: none", param=name)
    check_count("questions", "questions", len(body.questions), state.request_budgets.max_texts)
    shown = _shown(body.state)
    asked = [await _asked(call, shown, name, one) for name, one in body.questions.items()]
    place = Place("systemone", body.model, body.cache_salt, body.priority)
    scores = await likelihoods(call, asked, place)

    def make() -> Any:
        pairs = zip(body.questions.items(), scores.found, strict=True)
        return {
            "model": body.model or state.model_name,
            "answers": {name: one.told(shares(found)) for (name, one), found in pairs},
            "usage": _usage(scores),
        }

    return await state.workers.answer(call.size, lambda: dumps_long(make()))


async def _asked(
    call: Call[SystemOneRequest], shown: str, name: str, question: Asking
) -> Continued:
    """A question behind the state, which is the same before all of them."""
    text = "\n".join([shown, "", _shown(question.instructions), *question.lines])
    signs = await continuation_ids(call, question.signs, f"questions.{name}")
    if call.state.chat_template is None:
        return Continued(await text_prompt(call, f"{text}\n", "state"), signs, "state")
    message = Message(role="user", content=text)
    return Continued(await chat_prompt(call, [message], {}, "state"), signs, "state")


def _shown(value: Text) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _usage(scores: Scores) -> Mapping[str, Any]:
    usage = scores.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": 0,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def confidence_of_choice(probs: Sequence[float]) -> float:
    """How far the likeliest is above chance: 0 where all are alike, 1 where it is certain."""
    chance = 1 / len(probs)
    return 1.0 if len(probs) == 1 else max(0.0, (max(probs) - chance) / (1 - chance))


def confidence_of_score(probs: Sequence[float]) -> float:
    """How near the levels are to the likeliest, against levels that are all alike."""
    likeliest, middle = probs.index(max(probs)), (len(probs) - 1) / 2
    distance = sum(share * abs(level - likeliest) for level, share in enumerate(probs))
    of_chance = sum(abs(level - middle) for level in range(len(probs))) / len(probs)
    return max(0.0, 1 - distance / of_chance)
