"""``/v1/chat/completions``: conversations in OpenAI's older and most widespread form."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, Tag, model_validator

from lanewise.api.conversations import (
    AnyTools,
    Messages,
    TextPart,
    Tool,
    functions_of,
    left_out,
    places_of,
)
from lanewise.api.dialects.openai_fields import (
    constraint_of,
    delivery_of,
    ending_of,
    sampling_of,
)
from lanewise.api.dialects.openai_wire import OpenAiWire
from lanewise.api.generation.ask import Ask, Conversation, Ending, Shown, ToolUse
from lanewise.api.generation.dialect import Dialect
from lanewise.api.generation.events import (
    CallArguments,
    CallBegins,
    Choice,
    End,
    Event,
    Piece,
    Text,
    Thinking,
)
from lanewise.api.generation.logprobs import ChatLogprobs
from lanewise.api.generation.writing import dumps, dumps_long, dumps_text
from lanewise.api.schemas import (
    MAX_TOP_LOGPROBS,
    Count,
    Effort,
    FirstProblemOnly,
    GenerationFields,
    Strict,
    by_type,
    refuse,
)
from lanewise.engine.base.stream import Sampled

# Clients of DeepSeek, llama.cpp and SGLang read the first, those of vLLM and OpenRouter the second.
REASONING_NAMES = ("reasoning_content", "reasoning")


class FunctionName(Strict):
    """Which function."""

    name: str


class NamedTool(Strict):
    """The tool that the model must use."""

    type: Literal["function"]
    function: FunctionName


class AllowedFunctions(Strict):
    """Some of the tools, and whether the model must use one of them."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], FirstProblemOnly(), Field(min_length=1)]


class AllowedChoice(Strict):
    """The tools that the model may, or must, use."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions


Choosing = Annotated[
    Annotated[NamedTool, Tag("[function]")] | Annotated[AllowedChoice, Tag("[allowed_tools]")],
    by_type(),
]


class Prediction(Strict):
    """What the answer is expected to be, for the most part."""

    type: Literal["content"]
    content: str | Annotated[list[TextPart], FirstProblemOnly()]

    @property
    def text(self) -> str:
        """All of it."""
        return (
            self.content
            if isinstance(self.content, str)
            else "".join(part.text for part in self.content)
        )


class ChatCompletionRequest(GenerationFields):
    """Body of ``POST /v1/chat/completions``."""

    messages: Annotated[Messages, Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: AnyTools = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | Choosing = "auto"
    parallel_tool_calls: bool = True
    prediction: Prediction | None = Field(
        None, description="The answer comes faster where it is this, and is what it would be."
    )
    modalities: Annotated[list[Literal["text"]], FirstProblemOnly()] = Field(default_factory=list)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    reasoning_effort: Effort | None = Field(None, description="A variable of the chat template.")
    thinking_token_budget: Count | None = Field(
        None, description="The most tokens of reasoning, whose end comes next when they are spent."
    )
    reasoning_control: bool = Field(
        False,
        description="While the answer is written, `/v1/chat/completions/control` may end its"
        " reasoning.",
    )
    include_reasoning: bool = Field(True, description="Reasoning is part of the answer.")
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise refuse("top_logprobs", "only allowed with logprobs: true")
        if self.continue_final_message and self.messages[-1].role != "assistant":
            raise refuse("continue_final_message", "the last message is not the assistant's")
        return self

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        names = [tool.function.name for tool in functions_of(self.tools)]
        if len(set(names)) < len(names):
            raise refuse("tools", "two functions have the same name")
        for name in self.chosen or ():
            if name not in names:
                raise refuse(
                    "tool_choice", f"there is no such function among the tools: {name[:64]!r}"
                )
        if self.tool_choice == "required" and not names:
            raise refuse("tool_choice", "required without tools")
        return self

    @property
    def chosen(self) -> set[str] | None:
        """The functions that may be called; None: not some of them by name."""
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return {choice.function.name}
        if isinstance(choice, AllowedChoice):
            return {tool.function.name for tool in choice.allowed_tools.tools}
        return None

    @property
    def callable_tools(self) -> list[Tool]:
        """The tools that the answer may call."""
        functions = functions_of(self.tools)
        if self.chosen is not None:
            return [tool for tool in functions if tool.function.name in self.chosen]
        return [] if self.tool_choice == "none" else functions

    @property
    def requires_a_call(self) -> bool:
        """Whether the answer must call one of them."""
        choice = self.tool_choice
        if isinstance(choice, AllowedChoice):
            return choice.allowed_tools.mode == "required"
        return choice == "required" or isinstance(choice, NamedTool)


def ask(body: ChatCompletionRequest) -> Ask:
    """What a request asks for."""
    may_repeat = body.parallel_tool_calls and not isinstance(body.tool_choice, NamedTool)
    return Ask(
        input=Conversation(
            messages=body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            variables=body.chat_template_kwargs,
            effort=body.reasoning_effort,
            thinking_budget=body.thinking_token_budget,
            thinking_control=body.reasoning_control,
        ),
        model=body.model,
        tools=ToolUse(
            listed=functions_of(body.tools),
            callable=body.callable_tools,
            required=body.requires_a_call,
            parallel=may_repeat,
            params=places_of(body.tools),
        ),
        constraint=constraint_of(body),
        sampling=sampling_of(body),
        ending=_ending(body),
        shown=Shown(
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            prompt_logprobs=body.prompt_logprobs,
            prompt_scores=body.prompt_logprobs,
            token_ids=body.return_token_ids,
            receipt=body.receipt,
            special_tokens=not body.skip_special_tokens,
            thinking=body.include_reasoning,
        ),
        delivery=delivery_of(body),
        expected=None if body.prediction is None else body.prediction.text,
        n=body.n,
        priority=body.priority,
        last_prompt_tokens=body.truncate_prompt_tokens,
        cache_salt=body.cache_salt,
        notices=left_out(body.tools),
    )


def _ending(body: ChatCompletionRequest) -> Ending:
    newer, ending = body.max_completion_tokens, ending_of(body, None)
    if newer is None:
        return ending
    return replace(ending, max_tokens=newer, param="max_completion_tokens")


class ChatWire(OpenAiWire):
    """A message, or what each token adds to it."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def first(self) -> Iterator[str]:
        """The role of each message, which is the assistant's."""
        ask = self.about.ask
        for index in range(len(self.about.prompts) * ask.n_drawn):
            yield self.chunk(index, '"delta":{"role":"assistant","content":""},"logprobs":null')

    def piece(self, piece: Piece) -> Iterator[str]:
        """A chunk for each thing that a token adds; none if that is nothing."""
        if self.says_nothing(piece):
            return
        shown, events = "null", piece.events
        if self.about.ask.shown.logprobs is not None:
            shown = dumps_long(self._logprobs([piece.token]))
        more = f',"logprobs":{shown}{self.ids_of(piece)}'
        if len(events) == 1 and isinstance(events[0], Text):  # most tokens
            yield self.chunk(piece.choice, f'"delta":{_delta(events[0])}{more}')
            return
        deltas = [delta for event in events if (delta := _delta(event))] or ["{}"]
        end = events[-1] if events else None
        for delta in deltas[:-1]:
            yield self.chunk(piece.choice, f'"delta":{delta}{more}')
            more = ',"logprobs":null'  # a token is told once
        token = -1 if piece.token is None else piece.token.token
        last = end if isinstance(end, End) else None
        yield self.chunk(piece.choice, f'"delta":{deltas[-1]}{more}', last, token)

    def whole_choice(self, choice: Choice) -> dict[str, Any]:
        """The message."""
        text = choice.text
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if thinking := choice.thinking:
            message |= dict.fromkeys(REASONING_NAMES, thinking)
        if choice.calls:
            calls = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in choice.calls
            ]
            message |= {"content": text or None, "tool_calls": calls}
        return {"message": message}

    def more(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The prompt's log-probabilities, for there is one prompt, and the receipts."""
        return self.prompt_scores(choices[0]) | super().more(choices)

    def logprobs(self, choice: Choice) -> dict[str, Any] | None:
        """The log-probabilities of all tokens."""
        return self._logprobs(choice.tokens)

    def _logprobs(self, tokens: list[Sampled | None]) -> dict[str, Any] | None:
        if self.about.ask.shown.logprobs is None:
            return None
        made = ChatLogprobs()
        for token in tokens:
            if token is not None:
                made.add(self.about.names, token)
        return made.to_json()


def _delta(event: Event) -> str:
    """What an event adds to a message, as JSON; nothing for an end."""
    match event:
        case Text(text):
            return f'{{"content":{dumps_text(text)}}}'
        case Thinking(text):
            return dumps(dict.fromkeys(REASONING_NAMES, text))
        case CallBegins(index, id_, name, arguments):
            function = {"name": name, "arguments": arguments}
            call = {"index": index, "id": id_, "type": "function", "function": function}
            return dumps({"tool_calls": [call]})
        case CallArguments(index, text):
            return dumps({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        case End():
            return ""


CHAT_COMPLETIONS = Dialect(
    name="create_chat_completion",
    summary="Answer a conversation",
    body=ChatCompletionRequest,
    ask=ask,
    wire=ChatWire,
    progress=ChatWire.progress,
)
