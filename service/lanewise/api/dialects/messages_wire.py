"""Answers and errors of Anthropic's Messages API: content blocks, streamed or whole."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic_core import from_json

from lanewise.api.errors import ApiError, ContextLengthExceededError
from lanewise.api.generation.dialect import About
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
from lanewise.api.generation.writing import dumps, dumps_long, dumps_text
from lanewise.api.http.error_forms import ErrorForm
from lanewise.api.openapi.other_answers import MESSAGE_ERROR

REASONS = {"stop": "end_turn", "tool_calls": "tool_use"}
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# Clients send back reasoning that is signed, and drop the rest. The server does not verify it.
SIGNATURE = "unsigned"


def status_of(error: ApiError) -> int:
    """The status of an error: clients know an overloaded server by its own."""
    return 529 if error.status == 503 else error.status


def error_object(error: ApiError) -> dict[str, Any]:
    """An error as clients expect it; they shorten the conversation when they find the words."""
    status, message = status_of(error), error.message
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    if isinstance(error, ContextLengthExceededError):
        message = f"prompt is too long: {error.tokens} tokens > {error.limit} maximum"
    return {"type": "error", "error": {"type": kind, "message": message}}


ERRORS = ErrorForm("AnthropicError", MESSAGE_ERROR, error_object, status_of, (529,))


def _event(name: str, members: str = "") -> str:
    return f'event: {name}\ndata: {{"type":"{name}"{members}}}\n\n'


PING = _event("ping").encode()


class MessagesWire:
    """A message of blocks, each of which is one kind of thing."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._kind: type[Event] | None = None  # of the block that is open
        self._index = -1  # its number
        self._end: End | None = None
        self._has_begun = False

    def first(self) -> Iterable[str]:
        """Nothing: what of the prompt was cached is known with the first piece."""
        return ()

    def _begin(self) -> Iterator[str]:
        """A message without content."""
        if not self._has_begun:
            self._has_begun = True
            yield _event("message_start", f',"message":{dumps(self._message([], None))}')
            yield PING.decode()

    def piece(self, piece: Piece) -> Iterator[str]:
        """What each event adds to a block, of which it may be the first."""
        yield from self._begin()
        for event in piece.events:
            match event:
                case Text(text):
                    yield from self._goes_on(Text, {"type": "text", "text": ""})
                    yield self._delta(f'"type":"text_delta","text":{dumps_text(text)}')
                case Thinking(text):
                    yield from self._goes_on(
                        Thinking, {"type": "thinking", "thinking": "", "signature": ""}
                    )
                    yield self._delta(f'"type":"thinking_delta","thinking":{dumps_text(text)}')
                case CallBegins(_, id_, name, arguments):
                    yield from self._stop()
                    block = {"type": "tool_use", "id": id_, "name": name, "input": {}}
                    yield from self._goes_on(CallBegins, block)
                    if arguments:
                        yield self._arguments(arguments)
                case CallArguments(_, text):
                    yield self._arguments(text)
                case End():
                    self._end = event

    def last(self) -> Iterator[str]:
        """Why it ended, and what it took."""
        yield from self._begin()
        yield from self._stop()
        delta = dumps(self._ending(self._end))
        yield _event("message_delta", f',"delta":{delta},"usage":{dumps(self._usage())}')
        yield _event("message_stop")

    def failed(self, error: ApiError) -> Iterator[str]:
        """An error object as an event."""
        yield from self._begin()
        yield f"event: error\ndata: {dumps(error_object(error))}\n\n"

    def whole(self, choices: Sequence[Choice]) -> Iterator[str]:
        """The message with its content."""
        (choice,) = choices
        content = [_block(part) for part in choice.parts]
        yield dumps_long(self._message(content, choice.end))

    def _goes_on(self, kind: type[Event], block: dict[str, Any]) -> Iterator[str]:
        """A block of this kind is open; a new one if another was."""
        if self._kind is kind:
            return
        yield from self._stop()
        self._kind, self._index = kind, self._index + 1
        shown = f',"index":{self._index},"content_block":{dumps(block)}'
        yield _event("content_block_start", shown)

    def _stop(self) -> Iterator[str]:
        if self._kind is Thinking:
            yield self._delta(f'"type":"signature_delta","signature":"{SIGNATURE}"')
        if self._kind is not None:
            yield _event("content_block_stop", f',"index":{self._index}')
        self._kind = None

    def _delta(self, members: str) -> str:
        return _event("content_block_delta", f',"index":{self._index},"delta":{{{members}}}')

    def _arguments(self, text: str) -> str:
        return self._delta(f'"type":"input_json_delta","partial_json":{dumps_text(text)}')

    def _message(self, content: list[dict[str, Any]], end: End | None) -> dict[str, Any]:
        return {
            "id": "msg_" + self._about.id,
            "type": "message",
            "role": "assistant",
            "model": self._about.model,
            "content": content,
            **self._ending(end),
            "usage": self._usage(),
        }

    def _ending(self, end: End | None) -> dict[str, Any]:
        if end is None:
            reason = None
        elif end.stop is not None:
            reason = "stop_sequence"
        elif end.reason == "length":
            asked, drawn = self._about.ask.ending.max_tokens, self._about.usage.completion_tokens
            is_cut = asked is not None and drawn < asked
            reason = "model_context_window_exceeded" if is_cut else "max_tokens"
        else:
            reason = REASONS[end.reason]
        return {"stop_reason": reason, "stop_sequence": None if end is None else end.stop}

    def _usage(self) -> dict[str, Any]:
        usage = self._about.usage
        shown: dict[str, Any] = {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
        }
        if usage.thinking_tokens is not None:
            shown["output_tokens_details"] = {"thinking_tokens": usage.thinking_tokens}
        return shown


def _block(part: Event) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Thinking(text):
            return {"type": "thinking", "thinking": text, "signature": SIGNATURE}
        case CallBegins(_, id_, name, arguments):
            return {"type": "tool_use", "id": id_, "name": name, "input": _input(arguments)}
    raise AssertionError(part)


def _input(arguments: str) -> dict[str, Any]:
    """Arguments as an object: what there is of them where an answer was cut, as clients read it."""
    try:
        made = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return made if isinstance(made, dict) else {}
