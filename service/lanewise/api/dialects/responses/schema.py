"""What a request to ``/v1/responses`` may contain."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import ConfigDict, Field, Tag, field_validator, model_validator

from lanewise.api.conversations import ForeignTool, FunctionSpec
from lanewise.api.schemas import (
    MAX_TOP_LOGPROBS,
    NOT_SUPPORTED_NOW,
    Count,
    Effort,
    FirstProblemOnly,
    GenerationFields,
    SchemaObject,
    Strict,
    Strings,
    by_type,
    refuse,
)

MAX_METADATA = 16
# Of these the first is called otherwise here, and the others are not part of this form.
ELSEWHERE = {
    "max_tokens": "is called max_output_tokens here",
    "max_completion_tokens": "is called max_output_tokens here",
    "messages": "is called input here",
    "response_format": "is called text.format here",
}


def _untyped(value: Any) -> str:
    is_reference = isinstance(value, dict) and "id" in value and "role" not in value
    return "item_reference" if is_reference else "message"


class InputTextPart(Strict):
    """A text, of the user or of the model."""

    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class RefusalPart(Strict):
    """What a model said in place of an answer."""

    type: Literal["refusal"]
    refusal: str


class InputImagePart(Strict):
    """An image."""

    type: Literal["input_image"]
    image_url: str | None = None
    file_id: str | None = Field(None, description="Not supported: there are no files here.")
    detail: Literal["auto", "low", "high", "original"] = "auto"

    @model_validator(mode="after")
    def _is_here(self) -> Self:
        if self.file_id is not None:
            raise ValueError("file_id: there are no files here; accepted: image_url")
        if self.image_url is None:
            raise ValueError("input_image needs image_url")
        return self


Part = InputTextPart | RefusalPart | InputImagePart
Content = str | Annotated[list[Part], FirstProblemOnly()]


class Item(Strict):
    """What all items of a conversation have."""

    id: str | None = Field(None, max_length=256)


class MessageItem(Item):
    """What somebody said."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCallItem(Item):
    """A function that the model has called."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str = ""
    arguments: str


class FunctionOutputItem(Item):
    """What the function gave."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


class CustomCallItem(Item):
    """A tool that the model has called with a text."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: str = ""
    input: str


class CustomOutputItem(Item):
    """What the tool gave."""

    type: Literal["custom_tool_call_output"]
    call_id: str
    output: Content


class ReasoningItem(Item):
    """What the model thought before it answered."""

    type: Literal["reasoning"]
    summary: Annotated[list[InputTextPart], FirstProblemOnly()] = Field(default_factory=list)
    content: Annotated[list[InputTextPart], FirstProblemOnly()] = Field(default_factory=list)


class ForeignItem(Item):
    """What a tool of another server's did, or something else that we do not know."""

    model_config = ConfigDict(extra="allow")

    type: str


class ItemReference(Strict):
    """An item of a response that is kept."""

    type: Literal["item_reference"] = "item_reference"
    id: str


ITEMS = (
    MessageItem,
    FunctionCallItem,
    FunctionOutputItem,
    CustomCallItem,
    CustomOutputItem,
    ReasoningItem,
    ItemReference,
    ForeignItem,
)
TYPES = frozenset(get_args(item.model_fields["type"].annotation)[0] for item in ITEMS[:-1])
InputItem = Annotated[
    Annotated[MessageItem, Tag("[message]")]
    | Annotated[FunctionCallItem, Tag("[function_call]")]
    | Annotated[FunctionOutputItem, Tag("[function_call_output]")]
    | Annotated[CustomCallItem, Tag("[custom_tool_call]")]
    | Annotated[CustomOutputItem, Tag("[custom_tool_call_output]")]
    | Annotated[ReasoningItem, Tag("[reasoning]")]
    | Annotated[ItemReference, Tag("[item_reference]")]
    | Annotated[ForeignItem, Tag("[foreign]")],
    by_type(_untyped, TYPES),
]


class FunctionTool(FunctionSpec):
    """A function that the model may call."""

    type: Literal["function"]


class TextInput(Strict):
    """Any text."""

    type: Literal["text"]


class GrammarInput(Strict):
    """Texts of a grammar."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(Strict):
    """A tool that the model calls with a text."""

    type: Literal["custom"]
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str = ""
    format: TextInput | GrammarInput = Field(TextInput(type="text"), discriminator="type")


OWN_TYPES = ("function", "custom")
OwnTool = FunctionTool | CustomTool
AnyOwnTool = Annotated[
    Annotated[FunctionTool, Tag("[function]")]
    | Annotated[CustomTool, Tag("[custom]")]
    | Annotated[ForeignTool, Tag("[foreign]")],
    by_type(lambda _: "function", OWN_TYPES),
]


class Namespace(Strict):
    """Tools that belong together, as those of an MCP server."""

    type: Literal["namespace"]
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str = ""
    tools: Annotated[list[AnyOwnTool], FirstProblemOnly()] = Field(default_factory=list)


AnyTool = Annotated[
    Annotated[FunctionTool, Tag("[function]")]
    | Annotated[CustomTool, Tag("[custom]")]
    | Annotated[Namespace, Tag("[namespace]")]
    | Annotated[ForeignTool, Tag("[foreign]")],
    by_type(lambda _: "function", (*OWN_TYPES, "namespace")),
]


def full_name(namespace: str, name: str) -> str:
    """What the model knows a tool by."""
    if not namespace:
        return name
    return namespace + ("" if namespace.endswith("__") else "__") + name


class Offered(NamedTuple):
    """A tool that the model gets to see."""

    tool: OwnTool
    namespace: str  # empty: none
    param: str  # what clients call what it is called with

    @property
    def name(self) -> str:
        """What the model knows it by."""
        return full_name(self.namespace, self.tool.name)


class NamedChoice(Strict):
    """The tool that the model must use."""

    type: Literal["function", "custom"]
    name: str
    namespace: str = ""

    @property
    def full_name(self) -> str:
        """What the model knows the tool by."""
        return full_name(self.namespace, self.name)


class AllowedTools(Strict):
    """The tools that the model may, or must, use."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], FirstProblemOnly()]


Choice = Annotated[
    Annotated[NamedChoice, Tag("[function]")]
    | Annotated[NamedChoice, Tag("[custom]")]
    | Annotated[AllowedTools, Tag("[allowed_tools]")],
    by_type(),
]


class TextFormat(Strict):
    """What the text must look like; of a schema all that can be, and if strict all or a 400."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, max_length=64)
    description: str | None = None
    json_schema: SchemaObject | bool | None = Field(None, alias="schema")
    strict: bool = False

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise refuse("text.format.schema", "goes with type json_schema, and with no other")
        return self


class TextConfig(Strict):
    """What is asked of the text."""

    format: TextFormat = Field(default_factory=partial(TextFormat.model_validate, {"type": "text"}))
    verbosity: Literal["low", "medium", "high"] | None = Field(None, description="Ignored.")


class ReasoningConfig(Strict):
    """What is asked of reasoning; its summary is always empty, for all of it is in the answer."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesRequest(GenerationFields):
    """Body of ``POST /v1/responses``; what vLLM adds to OpenAI's fields is there too."""

    input: str | Annotated[list[InputItem], FirstProblemOnly()]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    tools: Annotated[list[AnyTool], FirstProblemOnly()] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | Choice = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = Field(None, description="Of tools that this server has: none.")
    text: TextConfig = Field(default_factory=partial(TextConfig.model_validate, {}))
    reasoning: ReasoningConfig = Field(default_factory=partial(ReasoningConfig.model_validate, {}))
    include: Strings = Field(default_factory=list, description="What is not here is left out.")
    max_output_tokens: Count | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    metadata: dict[str, str] = Field(default_factory=dict)
    truncation: Literal["auto", "disabled"] = Field(
        "disabled", description="auto: without the oldest messages, if all are too long."
    )
    background: bool = Field(False, description="Not supported.")
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None

    harmless: ClassVar[frozenset[str] | None] = (GenerationFields.harmless or frozenset()) | {
        *("client_metadata", "prompt_cache_options")
    }
    refused: ClassVar[tuple[str, ...]] = (
        *NOT_SUPPORTED_NOW,
        *("conversation", "prompt", "context_management", "moderation", "prompt_logprobs"),
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_elsewhere(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name, why in ELSEWHERE.items():
                if data.get(name) is not None:
                    raise refuse(name, why)
            if data.get("n") not in (None, 1):
                raise refuse("n", "accepted: 1")
        return data

    @field_validator("background")
    @classmethod
    def _no_background(cls, background: bool) -> bool:
        if background:
            raise refuse("background", "answers are made while their clients wait; accepted: false")
        return background

    @field_validator("metadata")
    @classmethod
    def _little_metadata(cls, metadata: dict[str, str]) -> dict[str, str]:
        if len(metadata) > MAX_METADATA:
            raise ValueError(f"accepted: at most {MAX_METADATA} keys")
        if any(len(key) > 64 or len(value) > 512 for key, value in metadata.items()):
            raise ValueError("accepted: keys of at most 64 characters with values of at most 512")
        return metadata

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        offered = list(self.offered)
        names = [one.name for one in offered]
        if len(set(names)) < len(names):
            raise refuse("tools", "two tools have the same name")
        if self.tool_choice == "required" and not names:
            raise refuse("tool_choice", "required without tools")
        known = {(one.tool.type, one.name) for one in offered}
        for choice in self.chosen or ():
            if (choice.type, choice.full_name) not in known:
                raise refuse(
                    "tool_choice",
                    f"there is no {choice.type} {choice.full_name[:64]!r} among the tools",
                )
        return self

    @property
    def offered(self) -> Iterator[Offered]:
        """The tools that the model gets to see."""
        for i, tool in enumerate(self.tools):
            if isinstance(tool, Namespace):
                for j, inner in enumerate(tool.tools):
                    yield from _offered(inner, tool.name, f"tools[{i}].tools[{j}]")
            else:
                yield from _offered(tool, "", f"tools[{i}]")

    @property
    def every_tool(self) -> Iterator[FunctionTool | CustomTool | ForeignTool]:
        """All tools, those in namespaces too."""
        for tool in self.tools:
            yield from tool.tools if isinstance(tool, Namespace) else (tool,)

    @property
    def chosen(self) -> list[NamedChoice] | None:
        """The tools that may be called; None: not some of them by name."""
        if isinstance(self.tool_choice, NamedChoice):
            return [self.tool_choice]
        return self.tool_choice.tools if isinstance(self.tool_choice, AllowedTools) else None

    @property
    def callable_names(self) -> set[str]:
        """The tools that the answer may call."""
        if self.chosen is not None:
            return {choice.full_name for choice in self.chosen}
        return set() if self.tool_choice == "none" else {one.name for one in self.offered}

    @property
    def requires_a_call(self) -> bool:
        """Whether the answer must call one of them."""
        choice = self.tool_choice
        if isinstance(choice, AllowedTools):
            return choice.mode == "required"
        return choice == "required" or isinstance(choice, NamedChoice)


def _offered(tool: Any, namespace: str, at: str) -> Iterator[Offered]:
    if isinstance(tool, CustomTool):
        yield Offered(tool, namespace, f"{at}.format")
    elif isinstance(tool, FunctionTool):
        yield Offered(tool, namespace, f"{at}.parameters")
