"""What conversations are made of, in OpenAI's words: messages, and tools that may be called."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Tag
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import from_json

from lanewise.api.schemas import (
    MAX_NAME,
    MAX_NAMES,
    FirstProblemOnly,
    SchemaObject,
    Strict,
    by_type,
)
from lanewise.text.surrogates import as_characters


class TextPart(Strict):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class ImageUrl(Strict):
    """An image, as a data: URL or where it is."""

    url: str
    detail: Literal["auto", "low", "high", "original"] = Field(
        "auto", description="With low it takes as few tokens as its model allows."
    )


class ImagePart(Strict):
    """An image between texts."""

    type: Literal["image_url"]
    image_url: str | ImageUrl
    # What a client of another dialect calls the image, for errors.
    place: SkipJsonSchema[str] = ""

    @property
    def url(self) -> str:
        """Its data, or where it is."""
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url

    @property
    def detail(self) -> Literal["auto", "low", "high", "original"]:
        """How much of it the model sees."""
        return "auto" if isinstance(self.image_url, str) else self.image_url.detail


# What is of no known type is said to be no text.
Part = Annotated[
    Annotated[TextPart, Tag("[text]")]
    | Annotated[ImagePart, Tag("[image_url]")]
    | Annotated[TextPart, Tag("[foreign]")],
    by_type(lambda _: "text", ("text", "image_url")),
]


class Message(BaseModel):
    """One message of a conversation; other keys are there for the template."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[Part], FirstProblemOnly()] | None = None

    @property
    def text(self) -> str:
        """The content without images, its parts as lines."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content if isinstance(part, TextPart))
        return self.content or ""

    @property
    def images(self) -> list[tuple[int, ImagePart]]:
        """Its images, each with its place in the content."""
        parts = self.content if isinstance(self.content, list) else ()
        return [(i, part) for i, part in enumerate(parts) if isinstance(part, ImagePart)]

    def marked(self, mark: str) -> str:
        """The content as text with a mark for each image; between texts alone are lines."""
        if not isinstance(self.content, list):
            return self.content or ""
        written = ""
        for part in self.content:
            if isinstance(part, ImagePart):
                written += mark
            else:
                written += ("" if not written or written.endswith(mark) else "\n") + part.text
        return written

    def for_template(self, mark: str = "") -> dict[str, Any]:
        """The message with its parts joined; of images there is a mark each, if there is one."""
        # Templates know the older name of the developer's role.
        role = "system" if self.role == "developer" else self.role
        others = self.model_extra or {}
        calls = others.get("tool_calls")
        if calls == []:  # some templates ask only whether there are any
            others = {key: value for key, value in others.items() if key != "tool_calls"}
        elif isinstance(calls, list):
            others = {**others, "tool_calls": [_with_object(call) for call in calls]}
        return {**others, "role": role, "content": self.marked(mark) if mark else self.text}


Messages = Annotated[list[Message], FirstProblemOnly()]


def _with_object(call: Any) -> Any:
    """A call whose arguments are an object, as templates expect, and not the JSON of one.

    Of JSON that was cut, as an answer may have been, it is what there is.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    given = function.get("arguments")
    arguments = _parsed(given) if isinstance(given, str) else given
    if arguments is None:
        arguments = {}
    elif not isinstance(arguments, dict):
        arguments = {"arguments": arguments}
    return {**call, "function": {**function, "arguments": arguments}}


def _parsed(text: str) -> Any:
    text = as_characters(text)
    if not text.strip():
        return {}
    for partial in (False, "trailing-strings"):
        try:
            return from_json(text, allow_partial=partial)
        except ValueError:
            continue
    return text


class FunctionSpec(Strict):
    """A function that the model may call."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str = ""
    parameters: SchemaObject | None = None
    strict: bool = Field(
        False, description="What cannot be enforced of parameters is a 400, not only told."
    )


class Tool(Strict):
    """A tool that the model may use; functions are what there is."""

    type: Literal["function"]
    function: FunctionSpec


def function_tool(
    name: str, description: str, parameters: dict[str, Any] | None, strict: bool
) -> Tool:
    """A tool of another dialect, whose names may be longer than OpenAI's."""
    function = FunctionSpec.model_construct(
        name=name, description=description, parameters=parameters, strict=strict
    )
    return Tool.model_construct(type="function", function=function)


class ForeignTool(Strict):
    """A tool that only servers of others run: it is left out, and the client is told."""

    model_config = ConfigDict(extra="allow")

    type: str


AnyTool = Annotated[
    Annotated[Tool, Tag("[function]")] | Annotated[ForeignTool, Tag("[foreign]")],
    by_type(lambda _: "function", ("function",)),
]
AnyTools = Annotated[list[AnyTool], FirstProblemOnly()]


def functions_of(tools: Iterable[Any]) -> list[Tool]:
    """The tools that are functions."""
    return [tool for tool in tools if isinstance(tool, Tool)]


def places_of(tools: Iterable[Any]) -> list[str]:
    """What clients call the parameters of those."""
    places = (i for i, tool in enumerate(tools) if isinstance(tool, Tool))
    return [f"tools[{i}].function.parameters" for i in places]


def left_out(tools: Iterable[Any]) -> Sequence[str]:
    """What the client is told of tools that are left out; nothing if there are none."""
    kinds = dict.fromkeys(tool.type for tool in tools if isinstance(tool, ForeignTool))
    if not kinds:
        return ()
    shown = ", ".join(kind[:MAX_NAME] for kind in islice(kinds, MAX_NAMES))
    return (f"tools: left out, for they are run by other servers: {shown}",)
