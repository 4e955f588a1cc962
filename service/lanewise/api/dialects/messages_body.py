"""Bodies of Anthropic's Messages API: every field we act on, with its range.

Fields that change nothing here (metadata, service_tier, cache_control, context_management …) are
ignored; prefixes are cached without being asked for.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from lanewise.api.schemas import Count, FirstProblemOnly, Strict, Strings, refuse

NOT_READ = ("image", "document", "search_result", "container_upload")
# What blocks of each type need, and whose messages may have them.
NEEDED = {
    "text": ("text",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
}
TYPES = {
    "user": {"text", "tool_result"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
    "system": {"text"},
}
REFUSED = ("mcp_servers", "container")


def _refuse_what_is_no_text(kind: Any) -> Any:
    if kind in NOT_READ:
        raise ValueError("this server reads text only")
    return kind


class TextBlock(Strict):
    """Some text."""

    type: Annotated[Literal["text"], BeforeValidator(_refuse_what_is_no_text)]
    text: str


Texts = str | Annotated[list[TextBlock], FirstProblemOnly()]


def joined(texts: Texts) -> str:
    """Blocks as one text, each on a line of its own."""
    return texts if isinstance(texts, str) else "\n".join(block.text for block in texts)


class Block(Strict):
    """A part of a message; what it has depends on its type."""

    type: Annotated[
        Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"],
        BeforeValidator(_refuse_what_is_no_text),
    ]
    text: str = Field(default="", description="Of text.")
    id: str = Field(default="", description="Of tool_use.")
    name: str = Field(default="", description="Of tool_use.")
    input: dict[str, Any] = Field(default_factory=dict, description="Of tool_use.")
    tool_use_id: str = Field(
        default="", description="Of tool_result: the tool_use that it answers."
    )
    content: Texts = Field(default="", description="Of tool_result.")
    is_error: bool = Field(default=False, description="Of tool_result.")
    thinking: str = Field(default="", description="Of thinking; templates keep or drop it.")

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        for name in NEEDED[self.type]:
            if name not in self.model_fields_set:
                raise ValueError(f"{self.type} needs {name}")
        return self


class Turn(Strict):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], FirstProblemOnly()]

    @model_validator(mode="after")
    def _blocks_fit_the_role(self) -> Self:
        for block in self.blocks:
            if block.type not in TYPES[self.role]:
                raise ValueError(f"a message of role {self.role} has no {block.type}")
        return self

    @property
    def blocks(self) -> list[Block]:
        """The parts; a text is one."""
        if isinstance(self.content, str):
            return [Block(type="text", text=self.content)]
        return self.content


def _refuse_tools_of_others(kind: Any) -> Any:
    if isinstance(kind, str) and kind != "custom":
        raise ValueError(
            "this server has no tools of its own; accepted: custom, with name and input_schema"
        )
    return kind


class ToolSpec(Strict):
    """A function that the model may call, and the client runs."""

    type: Annotated[Literal["custom"], BeforeValidator(_refuse_tools_of_others)] = "custom"
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str = ""
    input_schema: dict[str, Any]
    strict: bool = Field(
        False, description="What cannot be enforced of input_schema is a 400, not only told."
    )


class ToolChoice(Strict):
    """Which tools the answer uses."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(default=None, description="With tool: which.")
    disable_parallel_tool_use: bool = False


class Thinking(Strict):
    """Whether there is reasoning before the answer, and how much; without this there is none."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        default=None,
        description="With enabled: the most tokens of reasoning; less than max_tokens.",
    )
    display: Literal["summarized", "omitted"] = "summarized"

    @model_validator(mode="after")
    def _has_a_budget(self) -> Self:
        if self.type == "enabled" and self.budget_tokens is None:
            raise refuse("thinking.budget_tokens", "is needed with type enabled")
        return self


class OutputFormat(Strict):
    """What the answer must look like."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] | bool = Field(alias="schema")


class OutputConfig(Strict):
    """More about the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(Strict):
    """Body of ``POST /v1/messages/count_tokens``."""

    model: str
    messages: Annotated[list[Turn], FirstProblemOnly(), Field(min_length=1)]
    system: Texts = ""
    tools: Annotated[list[ToolSpec], FirstProblemOnly()] = Field(default_factory=list)
    tool_choice: ToolChoice = ToolChoice(type="auto")
    thinking: Thinking = Thinking(type="disabled")
    output_config: OutputConfig = OutputConfig()
    output_format: OutputFormat | None = Field(None, description="output_config.format.")

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_we_lack(cls, data: Any) -> Any:
        for name in REFUSED:
            if isinstance(data, dict) and data.get(name):
                raise refuse(name, "this field is not supported")
        return data

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        names = [tool.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise refuse("tools", "two tools have the same name")
        choice = self.tool_choice
        if choice.type == "tool" and choice.name not in names:
            raise refuse("tool_choice.name", f"{choice.name!r} is none of the tools")
        if choice.type == "any" and not names:
            raise refuse("tool_choice", "any without tools")
        return self

    @model_validator(mode="after")
    def _check_last_message(self) -> Self:
        if any(block.type == "tool_use" for block in self.messages[-1].blocks):
            raise refuse("messages", "the last one is a tool_use; its tool_result has to follow")
        return self

    @property
    def callable_tools(self) -> list[ToolSpec]:
        """The tools that the answer may call."""
        if self.tool_choice.type == "tool":
            return [tool for tool in self.tools if tool.name == self.tool_choice.name]
        return [] if self.tool_choice.type == "none" else self.tools


class MessagesRequest(CountTokensRequest):
    """Body of ``POST /v1/messages``."""

    max_tokens: Count = Field(
        description="The most tokens of the answer, which ends before where the context does."
    )
    stream: bool = False
    stop_sequences: Strings = Field(default_factory=list)
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, lt=2**31)

    @field_validator("stop_sequences")
    @classmethod
    def _no_empty_sequence(cls, sequences: list[str]) -> list[str]:
        if "" in sequences:
            raise ValueError("a stop sequence must not be empty")
        return sequences

    @model_validator(mode="after")
    def _budget_is_less(self) -> Self:
        budget = self.thinking.budget_tokens
        if budget is not None and budget >= self.max_tokens:
            raise refuse("thinking.budget_tokens", f"{budget} is not less than max_tokens")
        return self
