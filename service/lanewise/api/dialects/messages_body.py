"""Bodies of Anthropic's Messages API: every field we act on, with its range.

Fields that change nothing here (metadata, service_tier, cache_control, context_management …) are
ignored; prefixes are cached without being asked for.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, Tag, field_validator, model_validator

from lanewise.api.conversations import ForeignTool, left_out
from lanewise.api.dialects.messages_blocks import AnyBlock, Block, ForeignBlock, Texts
from lanewise.api.schemas import (
    MAX_NAME,
    MAX_NAMES,
    Count,
    FirstProblemOnly,
    SchemaObject,
    Strict,
    Strings,
    by_type,
    refuse,
)

TYPES = {
    "user": {"text", "tool_result", "document", "search_result", "image"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
    "system": {"text"},
}
# Tools of Anthropic's servers, which are none of ``tools``.
ELSEWHERE = ("mcp_servers", "container")


class Turn(Strict):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[AnyBlock], FirstProblemOnly()]

    @model_validator(mode="after")
    def _blocks_fit_the_role(self) -> Self:
        for block in self.blocks:
            if block.type not in TYPES[self.role]:
                raise ValueError(f"a message of role {self.role} has no {block.type}")
        return self

    @property
    def blocks(self) -> list[Any]:
        """The parts; a text is one. Parts of foreign tools are left out."""
        if isinstance(self.content, str):
            return [Block(type="text", text=self.content)]
        return [block for block in self.content if not isinstance(block, ForeignBlock)]

    @property
    def foreign(self) -> Iterator[str]:
        """The types of blocks that are left out."""
        for block in self.content if isinstance(self.content, list) else ():
            if isinstance(block, ForeignBlock):
                yield block.type
            elif isinstance(block, Block) and isinstance(block.content, list):
                inner = (one for one in block.content if isinstance(one, ForeignBlock))
                yield from (one.type for one in inner)


class ToolSpec(Strict):
    """A function that the model may call, and the client runs."""

    type: Literal["custom"] = "custom"
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str = ""
    input_schema: SchemaObject
    strict: bool = Field(
        False, description="What cannot be enforced of input_schema is a 400, not only told."
    )


AnyToolSpec = Annotated[
    Annotated[ToolSpec, Tag("[custom]")] | Annotated[ForeignTool, Tag("[foreign]")],
    by_type(lambda _: "custom", ("custom",)),
]


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
    json_schema: SchemaObject | bool = Field(alias="schema")


class OutputConfig(Strict):
    """More about the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(Strict):
    """Body of ``POST /v1/messages/count_tokens``."""

    model: str
    messages: Annotated[list[Turn], FirstProblemOnly(), Field(min_length=1)]
    system: Texts = ""
    tools: Annotated[list[AnyToolSpec], FirstProblemOnly()] = Field(default_factory=list)
    tool_choice: ToolChoice = ToolChoice(type="auto")
    thinking: Thinking = Thinking(type="disabled")
    output_config: OutputConfig = OutputConfig()
    output_format: OutputFormat | None = Field(None, description="output_config.format.")
    mcp_servers: Any = Field(None, description="Left out.")
    container: Any = Field(None, description="Left out.")

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        names = [tool.name for tool in self.functions]
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
    def functions(self) -> list[ToolSpec]:
        """The tools that clients run."""
        return [tool for tool in self.tools if isinstance(tool, ToolSpec)]

    @property
    def callable_tools(self) -> list[ToolSpec]:
        """The tools that the answer may call."""
        if self.tool_choice.type == "tool":
            return [tool for tool in self.functions if tool.name == self.tool_choice.name]
        return [] if self.tool_choice.type == "none" else self.functions

    @property
    def notices(self) -> Iterator[str]:
        """What the client is told of what is left out."""
        yield from left_out(self.tools)
        yield from (f"{name}: left out" for name in ELSEWHERE if getattr(self, name))
        kinds = dict.fromkeys(kind[:MAX_NAME] for turn in self.messages for kind in turn.foreign)
        if kinds:
            shown = ", ".join(list(kinds)[:MAX_NAMES])
            yield f"messages: blocks left out, for other servers' tools made them: {shown}"


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
