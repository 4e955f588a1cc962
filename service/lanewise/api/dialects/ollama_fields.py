"""Bodies of Ollama's API, and what they ask for in our terms."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, Tag

from lanewise.api.conversations import ForeignTool, Message, Tool
from lanewise.api.dialects.llama_fields import LlamaSampling, Whole
from lanewise.api.dialects.openai_fields import JSON_OBJECT
from lanewise.api.generation.ask import (
    Ask,
    BestEffort,
    Constraint,
    Delivery,
    Ending,
    Prompts,
    Shown,
)
from lanewise.api.generation.writing import dumps
from lanewise.api.schemas import (
    MAX_TOP_LOGPROBS,
    Effort,
    FirstProblemOnly,
    SchemaObject,
    Strict,
    by_type,
)
from lanewise.text.grammar import GrammarSource

Anything = Annotated[list[Any], FirstProblemOnly()]
Images = Annotated[list[str], FirstProblemOnly()]
GOODBYE = (0, "0", "0s", "0m", "0h")  # with which others unload a model
SCHEMA_OR_JSON = 'accepted: "json" or a JSON schema'


class OllamaOptions(LlamaSampling):
    """``options``: those that are not known are named in a header of the answer."""

    model_config = ConfigDict(extra="allow")

    num_predict: Whole = Field(-1, ge=-2, lt=2**31, description="0 and less: to the context's end.")
    num_ctx: Whole | None = Field(
        None,
        ge=1,
        lt=2**31,
        description="The context is max_model_len; the client is told of more.",
    )

    @classmethod
    def unsaid(cls) -> Self:
        """The options of a request that has none."""
        return cls.model_validate({})


class OllamaFields(Strict):
    """What chat and generate share."""

    model: str | None = None
    stream: bool = True
    format: Literal["", "json"] | SchemaObject = Field("", description=SCHEMA_OR_JSON)
    options: OllamaOptions = Field(default_factory=OllamaOptions.unsaid)
    think: bool | Effort | None = Field(None, description="Reasoning, or how much of it.")
    keep_alive: str | float | None = Field(None, description="The model always stays.")
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)

    @property
    def constraint(self) -> Constraint | None:
        """The form that the answer obeys."""
        if self.format == "":
            return None
        if self.format == "json":
            return Constraint("format", GrammarSource.from_json_schema, JSON_OBJECT)
        return Constraint("format", BestEffort(), self.format)

    @property
    def variables(self) -> dict[str, Any]:
        """What templates that can do with and without reasoning ask for it."""
        if self.think is None:
            return {}
        return {"enable_thinking": self.must_think, "thinking": self.must_think}

    @property
    def must_think(self) -> bool:
        """Whether reasoning is asked for."""
        return self.think not in (None, False, "none")

    @property
    def effort(self) -> str | None:
        """How much reasoning there is to be."""
        return self.think if isinstance(self.think, str) and self.think != "none" else None

    def ask(self, input_: Any, more_notices: Sequence[str] = (), **more: Any) -> Ask:
        """The fields that mean the same in both."""
        options = self.options
        return Ask(
            input=input_,
            model=self.model,
            constraint=self.constraint,
            sampling=options.sampling(),
            ending=Ending(
                max_tokens=options.num_predict if options.num_predict > 0 else None,
                param="options.num_predict",
                strings=options.stops,
            ),
            shown=Shown(
                logprobs=self.top_logprobs if self.logprobs or self.top_logprobs else None,
                thinking=self.think not in (False, "none"),
            ),
            delivery=Delivery(stream=self.stream),
            context=options.num_ctx,
            context_param="options.num_ctx",
            notices=(*options.notices("options."), *more_notices),
            **more,
        )

    def nothing(self) -> Ask:
        """What a request without a prompt asks for: whether the model is here."""
        goodbye = self.keep_alive in GOODBYE
        return Ask(input=Prompts(items=()), model=self.model, says_goodbye=goodbye)


class GenerateRequest(OllamaFields):
    """Body of ``POST /api/generate``."""

    prompt: str = ""
    suffix: str = Field("", description="What is behind the gap that the answer fills.")
    system: str = ""
    template: str = Field("", description="Not supported: the model's own is used.")
    raw: bool = Field(False, description="The prompt is what the model continues.")
    context: Anything = Field(default_factory=list, description="Not supported.")
    images: Images = Field(default_factory=list, description="In base64.")


class OllamaFunction(Strict):
    """A function and what it was called with."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)


class OllamaCall(Strict):
    """A call in a message of the assistant's."""

    id: str = ""
    function: OllamaFunction


class OllamaTool(Tool):
    """A tool, which need not say that it is a function."""

    type: Literal["function"] = "function"


AnyOllamaTool = Annotated[
    Annotated[OllamaTool, Tag("[function]")] | Annotated[ForeignTool, Tag("[foreign]")],
    by_type(lambda _: "function", ("function",)),
]


class OllamaMessage(Strict):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str = ""
    thinking: str = ""
    images: Images = Field(default_factory=list, description="In base64.")
    tool_calls: Annotated[list[OllamaCall], FirstProblemOnly()] = Field(default_factory=list)
    tool_name: str = Field("", description="Of the tool whose result this is.")
    tool_call_id: str = ""


class ChatRequest(OllamaFields):
    """Body of ``POST /api/chat``."""

    messages: Annotated[list[OllamaMessage], FirstProblemOnly()] = Field(default_factory=list)
    truncate: bool = Field(
        True, description="Without the oldest messages, if all are too long; false: an error."
    )
    tools: Annotated[list[AnyOllamaTool], FirstProblemOnly()] = Field(default_factory=list)


class ShowRequest(Strict):
    """Body of ``POST /api/show``."""

    model: str | None = None
    name: str | None = Field(None, description="The older word for model.")
    verbose: bool = False


class PullRequest(Strict):
    """Body of ``POST /api/pull``."""

    model: str | None = None
    name: str | None = Field(None, description="The older word for model.")
    stream: bool = True


def with_images(text: str, images: Sequence[str], param: str) -> str | list[dict[str, Any]]:
    """A message's content: images come before its text."""
    if not images:
        return text
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": _as_url(image), "place": f"{param}[{i}]"}
        for i, image in enumerate(images)
    ]
    return [*parts, {"type": "text", "text": text}] if text else parts


def _as_url(image: str) -> str:
    return image if image[:5].lower() == "data:" else f"data:;base64,{image}"


def to_messages(messages: Sequence[OllamaMessage]) -> list[Message]:
    """Messages in OpenAI's words. Calls without ids get some, and results those of their calls."""
    made: list[Message] = []
    open_calls: list[tuple[str, str]] = []  # names and ids of those without a result yet
    n_calls = 0
    for i, message in enumerate(messages):
        content = with_images(message.content, message.images, f"messages[{i}].images")
        shown: dict[str, Any] = {"role": message.role, "content": content}
        if message.thinking:
            shown["reasoning_content"] = message.thinking
        if message.tool_calls:
            shown["tool_calls"] = []
            open_calls = []
        for call in message.tool_calls:
            id_ = call.id or f"call{n_calls:05}"  # nine letters and digits, as Mistral has them
            n_calls += 1
            open_calls.append((call.function.name, id_))
            arguments = call.function.arguments
            text = arguments if isinstance(arguments, str) else dumps(arguments)
            function = {"name": call.function.name, "arguments": text}
            shown["tool_calls"].append({"id": id_, "type": "function", "function": function})
        if message.role == "tool":
            shown |= _result_of(message, open_calls)
        made.append(Message.model_validate(shown))
    return made


def _result_of(message: OllamaMessage, open_calls: list[tuple[str, str]]) -> dict[str, str]:
    """Which call a message is the result of; that call is open no more."""
    wanted, name = message.tool_call_id, message.tool_name
    for call in open_calls:
        if (wanted or call[1]) == call[1] and (wanted or not name or name == call[0]):
            open_calls.remove(call)
            return {"tool_call_id": call[1], "name": name or call[0]}
    shown = {"tool_call_id": wanted, "name": name}
    return {key: value for key, value in shown.items() if value}
