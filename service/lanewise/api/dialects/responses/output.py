"""The items of an answer as they grow, and the events that tell of it.

Streams send the events, whole answers have the items: both are made here, of the same pieces.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, NamedTuple

from lanewise.api.dialects.responses.items import JsonItem, item_id
from lanewise.api.generation.custom_tools import InputReader
from lanewise.api.generation.dialect import About
from lanewise.api.generation.events import CallArguments, CallBegins, End, Piece, Text, Thinking
from lanewise.api.generation.logprobs import ChatLogprobs
from lanewise.engine.base.stream import Sampled

Told = tuple[str, dict[str, Any]]  # an event's name, without "response.", and its members
Logprobs = list[dict[str, Any]]


class Named(NamedTuple):
    """A tool as its client knows it."""

    name: str
    namespace: str = ""
    is_custom: bool = False


class Growing(ABC):
    """An item to which the answer adds."""

    kind: str
    told: str  # what events about more of it are called
    field: str  # in which they have all of it at the end

    def __init__(self, id_: str, index: int) -> None:
        self.id, self.index = id_, index
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self._texts)

    @abstractmethod
    def item(self, status: str) -> JsonItem:
        """The item as it is now."""

    def begin(self) -> Iterator[Told]:
        """It is there."""
        yield "output_item.added", {"output_index": self.index, "item": self.item("in_progress")}

    def more(self, text: str, **others: Any) -> Iterator[Told]:
        """It goes on."""
        self._texts.append(text)
        yield f"{self.told}.delta", self._about(delta=text, **others)

    def end(self, status: str) -> Iterator[Told]:
        """Nothing comes any more."""
        yield f"{self.told}.done", self._about(**{self.field: self.text})
        yield "output_item.done", {"output_index": self.index, "item": self.item(status)}

    def _about(self, **others: Any) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index, **others}


class Reasoning(Growing):
    """What the model thinks."""

    kind, told, field = "reasoning", "reasoning_text", "text"

    def part(self) -> dict[str, Any]:
        """The only part of the content."""
        return {"type": "reasoning_text", "text": self.text}

    def item(self, status: str) -> JsonItem:
        """With no summary: here is all of it."""
        content = [self.part()] if self._texts else []
        item = {"id": self.id, "type": self.kind, "summary": [], "content": content}
        return item | {"status": status}

    def begin(self) -> Iterator[Told]:
        """And its part."""
        yield from super().begin()
        yield "content_part.added", self._about(part=self.part())

    def end(self, status: str) -> Iterator[Told]:
        """Text, part and item."""
        done, item = super().end(status)
        yield done
        yield "content_part.done", self._about(part=self.part())
        yield item

    def _about(self, **others: Any) -> dict[str, Any]:
        return super()._about(content_index=0, **others)


class Message(Reasoning):
    """What the model says."""

    kind, told = "message", "output_text"

    def __init__(self, id_: str, index: int) -> None:
        super().__init__(id_, index)
        self._logprobs: Logprobs = []

    def part(self) -> dict[str, Any]:
        """With the log-probabilities of its tokens, if they are wanted."""
        text = {"type": "output_text", "annotations": [], "logprobs": list(self._logprobs)}
        return text | {"text": self.text}

    def item(self, status: str) -> JsonItem:
        """The assistant's."""
        content = [] if status == "in_progress" else [self.part()]
        item = {"id": self.id, "type": self.kind, "status": status, "role": "assistant"}
        return item | {"content": content}

    def more(self, text: str, **others: Any) -> Iterator[Told]:
        """With the log-probabilities of the tokens of this text."""
        self._logprobs += others["logprobs"]
        return super().more(text, **others)

    def end(self, status: str) -> Iterator[Told]:
        """And all log-probabilities."""
        for name, members in super().end(status):
            more = {"logprobs": list(self._logprobs)} if name == "output_text.done" else {}
            yield name, members | more


class FunctionCall(Growing):
    """A function that the model calls."""

    kind, told, field = "function_call", "function_call_arguments", "arguments"

    def __init__(self, id_: str, index: int, call_id: str, tool: Named) -> None:
        super().__init__(id_, index)
        self._call_id, self._name = call_id, tool.name
        self._where = {"namespace": tool.namespace} if tool.namespace else {}

    def item(self, status: str) -> JsonItem:
        """With the arguments so far."""
        head = {"id": self.id, "type": self.kind, "status": status, self.field: self.text}
        return head | {"call_id": self._call_id, "name": self._name, **self._where}

    def push(self, arguments: str) -> Iterator[Told]:
        """More of the JSON of its arguments."""
        return self.more(arguments) if arguments else iter(())

    def end(self, status: str) -> Iterator[Told]:
        """With the name, which some clients read here."""
        for name, members in super().end(status):
            more = {"name": self._name} if name == f"{self.told}.done" else {}
            yield name, members | more


class CustomCall(FunctionCall):
    """A tool that the model calls with a text."""

    kind, told, field = "custom_tool_call", "custom_tool_call_input", "input"

    def __init__(self, id_: str, index: int, call_id: str, tool: Named) -> None:
        super().__init__(id_, index, call_id, tool)
        self._reader = InputReader()

    def push(self, arguments: str) -> Iterator[Told]:
        """More of the JSON in which the text is."""
        return super().push(self._reader.push(arguments))


class Output:
    """All items of an answer."""

    def __init__(self, about: About, tools: Mapping[str, Named], first_number: int) -> None:
        self.items: list[JsonItem] = []  # that are complete, in the end all
        self.reason: str | None = None  # why it has ended
        self._about = about
        self._tools = tools  # by what the model knows them by
        self._first_number = first_number  # of its items' ids
        self._growing: Growing | None = None
        self._tokens: list[Sampled] = []  # of text that did not come yet

    def take(self, piece: Piece) -> Iterator[Told]:
        """What a piece adds."""
        if piece.token is not None and self._about.ask.shown.logprobs is not None:
            self._tokens.append(piece.token)
        for event in piece.events:
            match event:
                case Text(text):
                    if not isinstance(self._growing, Message):
                        yield from self._begin(self._new(Message))
                    yield from self._more(text, logprobs=self._take_logprobs())
                case Thinking(text):
                    if self._growing is None or self._growing.kind != "reasoning":
                        yield from self._begin(self._new(Reasoning))
                    yield from self._more(text)
                case CallBegins(_, id_, name, arguments):
                    tool = self._tools.get(name, Named(name))
                    call = CustomCall if tool.is_custom else FunctionCall
                    yield from self._begin(self._new(call, id_, tool))
                    yield from self._push(arguments)
                case CallArguments(_, text):
                    yield from self._push(text)
                case End(reason):
                    yield from self.finish(reason)
            if not isinstance(event, Text):
                self._tokens.clear()

    def finish(self, reason: str) -> Iterator[Told]:
        """The answer is over."""
        self.reason = reason
        says_nothing = all(item["type"] == "reasoning" for item in self.items)
        if reason == "stop" and says_nothing and type(self._growing) in (Reasoning, NoneType):
            yield from self._begin(self._new(Message))
        is_cut = reason == "length" or (
            reason != "tool_calls" and isinstance(self._growing, FunctionCall)
        )
        yield from self._end("incomplete" if is_cut else "completed")

    def _new(self, kind: Any, *others: Any) -> Growing:
        number = len(self.items) + (self._growing is not None)
        id_ = item_id(kind.kind, self._about.id, self._first_number + number)
        made: Growing = kind(id_, number, *others)
        return made

    def _begin(self, item: Growing) -> Iterator[Told]:
        yield from self._end("completed")
        self._growing = item
        yield from item.begin()

    def _end(self, status: str) -> Iterator[Told]:
        if self._growing is not None:
            yield from self._growing.end(status)
            self.items.append(self._growing.item(status))
            self._growing = None

    def _more(self, text: str, **others: Any) -> Iterator[Told]:
        return iter(()) if self._growing is None else self._growing.more(text, **others)

    def _push(self, arguments: str) -> Iterator[Told]:
        call = self._growing
        return call.push(arguments) if isinstance(call, FunctionCall) else iter(())

    def _take_logprobs(self) -> Logprobs:
        made = ChatLogprobs()
        for token in self._tokens:
            made.add(self._about.names, token)
        self._tokens.clear()
        return made.content
