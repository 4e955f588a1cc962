"""What bodies with texts share."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from lanewise.api.errors import BadRequestError
from lanewise.api.schemas import FirstProblemOnly, Strict, Strings, TokenIds
from lanewise.text.whole_texts import Side

SIDES: dict[bool | str, Side | None] = {
    True: "right",
    False: None,
    "NONE": None,
    "END": "right",
    "START": "left",
    "right": "right",
    "left": "left",
    "Right": "right",
    "Left": "left",
}
Texts = str | Strings | TokenIds | Annotated[list[TokenIds], FirstProblemOnly()]
Truncate = Literal[True, False, "NONE", "START", "END"]


class Cut(NamedTuple):
    """What becomes of a text that is too long."""

    side: Side | None = None  # None: it is refused
    at: int | None = None  # tokens, if fewer than the model takes

    def limit(self, most: int) -> int:
        """Tokens that a text may have."""
        if self.at is None:
            return most
        if self.at > most:
            raise BadRequestError(
                f"truncate_prompt_tokens: {self.at} is more than a text may have; accepted: -1,"
                f" or 1 to {most}",
                param="truncate_prompt_tokens",
            )
        return self.at


class TextFields(Strict):
    """What all of them may say."""

    lacked = frozenset(("late_chunking",))
    harmless = frozenset(("user", "keep_alive", "options", "priority", "request_id"))

    model: str | None = None
    truncate: Truncate = Field(False, description="Cut what is too long, instead of refusing it.")
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, lt=2**31, description="Cut to so many tokens; -1: to as many as can be."
    )
    truncation_side: Literal["left", "right"] | None = None
    truncation_direction: Literal["Left", "Right"] | None = None

    @property
    def cut(self) -> Cut:
        """The same in one."""
        given = self.truncate_prompt_tokens
        if given == 0:
            raise BadRequestError(
                "truncate_prompt_tokens: 0 tokens are no text; accepted: -1, or 1 and more",
                param="truncate_prompt_tokens",
            )
        side = SIDES[self.truncate]
        if side is None and given is not None:
            side = "right"
        named = self.truncation_side or self.truncation_direction
        if side is not None and named is not None:
            side = SIDES[named]
        return Cut(side, None if given in (None, -1) else given)


class PromptName(NamedTuple):
    """A prompt by its name; what is not needed may be asked of models without prompts."""

    name: str | None = None
    is_needed: bool = True


class PromptFields(TextFields):
    """And where texts may have a prompt before them."""

    prompt_name: str | None = Field(None, description="Of the model's prompts: query, document …")
    input_type: str | None = Field(None, description="The same, in the words of others.")

    @property
    def named_prompt(self) -> PromptName:
        """The prompt that is asked for by its name."""
        if self.prompt_name is not None:
            return PromptName(self.prompt_name, is_needed=True)
        return PromptName(self.input_type, is_needed=False)
