"""``/api/chat`` and ``/api/generate``: Ollama's own API, one JSON object a line."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lanewise.api.conversations import Message, functions_of, left_out, places_of
from lanewise.api.dialects.ollama_fields import (
    ChatRequest,
    GenerateRequest,
    to_messages,
    with_images,
)
from lanewise.api.errors import ApiError, BadRequestError, ModelNotFoundError
from lanewise.api.generation.ask import Ask, Conversation, Infill, Prompts, ToolUse
from lanewise.api.generation.dialect import About, Dialect
from lanewise.api.generation.events import (
    Call,
    CallArguments,
    CallBegins,
    Choice,
    End,
    Piece,
    Text,
    Thinking,
)
from lanewise.api.generation.logprobs import ChatLogprobs
from lanewise.api.generation.writing import dumps, dumps_long, dumps_text, utc_time
from lanewise.api.http.error_forms import ErrorForm
from lanewise.api.openapi.other_answers import OLLAMA_ERROR
from lanewise.engine.base.stream import Sampled

NS_PER_S = 1_000_000_000


def ask_chat(body: ChatRequest) -> Ask:
    """What a request for the next message asks for; without messages, whether the model is here."""
    if not body.messages:
        return body.nothing()
    last = body.messages[-1]
    conversation = Conversation(
        messages=to_messages(body.messages),
        drops_oldest=body.truncate,
        # As in Ollama, the answer goes on with what the assistant is already given to say.
        continue_final_message=last.role == "assistant" and not last.tool_calls,
        variables=body.variables,
        effort=body.effort,
        must_think=body.must_think,
        effort_param="think",
    )
    functions = functions_of(body.tools)
    tools = ToolUse(listed=functions, callable=functions, params=places_of(body.tools))
    return body.ask(conversation, tools=tools, more_notices=left_out(body.tools))


def ask_generate(body: GenerateRequest) -> Ask:
    """What a request for a text asks for; without a prompt, whether the model is here."""
    _refuse_what_we_lack(body)
    if body.images and (body.raw or body.suffix):
        name = "raw" if body.raw else "suffix"
        raise BadRequestError(f"images: not with {name}, which has no template", param="images")
    if body.suffix:
        if body.raw:
            raise BadRequestError("suffix: not with raw, whose prompt is complete", param="suffix")
        return body.ask(Prompts(items=[Infill(prefix=body.prompt, suffix=body.suffix)]))
    if not body.prompt and not body.images:
        return body.nothing()
    if body.raw:
        if body.system:
            raise BadRequestError("system: not with raw, whose prompt is complete", param="system")
        return body.ask(Prompts(items=[body.prompt]))
    content = with_images(body.prompt, body.images, "images")
    said: list[tuple[str, Any]] = [("system", body.system)] if body.system else []
    said.append(("user", content))
    messages = [Message.model_validate({"role": role, "content": one}) for role, one in said]
    plain = "\n\n".join(filter(None, (body.system, body.prompt)))
    return body.ask(
        Conversation(
            messages=messages,
            variables=body.variables,
            effort=body.effort,
            must_think=body.must_think,
            effort_param="think",
            plain=None if body.images else plain,
            param="prompt",
        )
    )


def _refuse_what_we_lack(body: GenerateRequest) -> None:
    if body.template:
        raise BadRequestError(
            "template: the model's own is used; accepted: none, or raw: true with a whole prompt",
            param="template",
        )
    if body.context:
        raise BadRequestError(
            "context: not supported; accepted: none, and conversations at /api/chat",
            param="context",
        )


def error_body(error: ApiError) -> dict[str, Any]:
    """An error as Ollama's clients read it."""
    missing = isinstance(error, ModelNotFoundError)
    return {"error": f"model not found: {error.message}" if missing else error.message}


ERRORS = ErrorForm("OllamaError", OLLAMA_ERROR, error_body)


class OllamaWire(ABC):
    """One object, or one for each token that adds something and one with the numbers."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._logprobs = about.ask.shown.logprobs is not None
        created = utc_time(about.created)
        # All of a line that stays the same, written once.
        self._head = dumps({"model": about.model, "created_at": created})[:-1]
        self._call: Call | None = None  # that goes on
        self._n_calls = 0
        self._reason: str | None = None

    @abstractmethod
    def said(self, text: str, thinking: str, calls: Sequence[str]) -> str:
        """Members with a part of an answer, or all of it; calls are JSON objects."""

    def first(self) -> Iterable[str]:
        """Nothing."""
        return ()

    def piece(self, piece: Piece) -> Iterator[str]:
        """One line, unless a token adds nothing; a call is told when it is complete."""
        text = thinking = ""
        calls: list[str] = []
        for event in piece.events:
            match event:
                case Text(more):
                    text += more
                case Thinking(more):
                    thinking += more
                case CallBegins(_, id_, name, arguments):
                    calls += self._end_call()
                    self._call = Call(id_, name, arguments)
                case CallArguments(_, more) if self._call is not None:
                    self._call.arguments += more
                case End(reason):
                    calls += self._end_call()
                    self._reason = reason
        if text or thinking or calls or (self._logprobs and piece.token is not None):
            scores = self._scores([piece.token])
            said = self.said(text, thinking, calls)
            yield f'{self._head},{said},"done":false{scores}}}\n'

    def last(self) -> Iterator[str]:
        """Why the answer is over, and what it took."""
        yield f"{self._head},{self.said('', '', ())},{self._end(self._reason)}}}\n"

    def failed(self, error: ApiError) -> Iterator[str]:
        """An error in a line of its own."""
        yield dumps(error_body(error)) + "\n"

    def whole(self, choices: Sequence[Choice]) -> Iterator[str]:
        """All in one object."""
        if not choices:  # nothing was asked but whether the model is here
            why = "unload" if self._about.ask.says_goodbye else "load"
            yield f'{self._head},{self.said("", "", ())},"done":true,"done_reason":"{why}"}}'
            return
        (choice,) = choices
        calls: list[str] = []
        for call in choice.calls:
            calls += _written(call, len(calls))
        reason = None if choice.end is None else choice.end.reason
        yield f"{self._head},{self.said(choice.text, choice.thinking, calls)}"
        yield f",{self._end(reason)}{self._scores(choice.tokens)}}}"

    def _end_call(self) -> list[str]:
        """The call that goes on, which is over."""
        made = [] if self._call is None else _written(self._call, self._n_calls)
        self._call, self._n_calls = None, self._n_calls + len(made)
        return made

    def _end(self, reason: str | None) -> str:
        usage, times = self._about.usage, self._about.usage.times
        ending = {
            "done": True,
            "done_reason": "length" if reason == "length" else "stop",
            "total_duration": int(times.total_s * NS_PER_S),
            "load_duration": int(times.preparing_s * NS_PER_S),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": int(times.prompt_s * NS_PER_S),
            "eval_count": usage.completion_tokens,
            # Clients divide by it, and the only token of an answer takes no time.
            "eval_duration": max(1, int(times.answer_s * NS_PER_S)),
        }
        return dumps(ending)[1:-1]

    def _scores(self, tokens: Sequence[Sampled | None]) -> str:
        if not self._logprobs:
            return ""
        made = ChatLogprobs()
        for token in tokens:
            if token is not None:
                made.add(self._about.names, token)
        return f',"logprobs":{dumps_long(made.content)}'


class ChatWire(OllamaWire):
    """A message."""

    def said(self, text: str, thinking: str, calls: Sequence[str]) -> str:
        """A part of it."""
        more = f',"thinking":{dumps_text(thinking)}' if thinking else ""
        more += f',"tool_calls":[{",".join(calls)}]' if calls else ""
        return f'"message":{{"role":"assistant","content":{dumps_text(text)}{more}}}'


class GenerateWire(OllamaWire):
    """A text."""

    def said(self, text: str, thinking: str, calls: Sequence[str]) -> str:
        """A part of it."""
        more = f',"thinking":{dumps_text(thinking)}' if thinking else ""
        return f'"response":{dumps_text(text)}{more}'


def _written(call: Call, index: int) -> list[str]:
    """A call with its arguments as an object; nothing if they were cut off."""
    try:
        is_whole = isinstance(json.loads(call.arguments), dict)
    except (ValueError, RecursionError):
        is_whole = False
    if not is_whole:
        return []
    # As the model wrote them, so that no number changes; line breaks are only between values.
    arguments = call.arguments.replace("\n", " ").replace("\r", " ")
    name = f'"index":{index},"name":{dumps_text(call.name)}'
    function = f'{{{name},"arguments":{arguments}}}'
    return [f'{{"id":{dumps_text(call.id)},"function":{function}}}']


OLLAMA_CHAT = Dialect(
    name="ollama_chat",
    summary="Answer a conversation, in Ollama's words",
    body=ChatRequest,
    ask=ask_chat,
    wire=ChatWire,
    media_type="application/x-ndjson",
    keep_alive=b"",
    errors=ERRORS,
)
OLLAMA_GENERATE = Dialect(
    name="ollama_generate",
    summary="Answer a prompt, in Ollama's words",
    body=GenerateRequest,
    ask=ask_generate,
    wire=GenerateWire,
    media_type="application/x-ndjson",
    keep_alive=b"",
    errors=ERRORS,
)
