"""What all forms of tool calls share: how one is found in text, and how it is told to clients."""

from __future__ import annotations

import hashlib
import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lanewise.text.grammar import GrammarError
from lanewise.text.tokenizer import Tokenizer

Parameters = Mapping[str, Any] | None
Tools = Mapping[str, Parameters]  # the schemas of functions' arguments, by name

NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
# Keywords beside which we cannot know what other properties an object may have.
OPEN_KEYWORDS = {"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"}
ID_CHARACTERS = string.ascii_letters + string.digits
MAX_HEAD = 1 << 10  # characters, more than the longest name has


class CallFormat(ABC):
    """How a family writes calls into its answers."""

    name: str
    begin: str  # announces calls; empty: a call is the whole answer, from its first character on
    takes_tools: bool = True  # the template writes tools into the prompt
    id_length: int | None = None  # of ids that its template accepts; None: any

    @abstractmethod
    def tags(self) -> tuple[str, ...]:
        """The texts between names and arguments, some of which may be control tokens."""

    @abstractmethod
    def rules(self, tools: Tools, tokenizer: Tokenizer, *, parallel: bool) -> list[str]:
        """Rules of a grammar of which ``calls`` is what follows ``begin``.

        GrammarError if the parameters of one of the tools cannot be used.
        """

    def openings(self, tools: Tools) -> tuple[str, ...]:
        """With one of these a call goes on behind ``begin`` and white space; without: anyhow.

        Where nothing of the kind follows, the text before was only a mention of ``begin``.
        """
        return ()

    @abstractmethod
    def parser(self, tools: Tools) -> CallParser:
        """Something that reads one answer."""


def argument_schema(parameters: Parameters) -> dict[str, Any]:
    """The schema of a function's arguments: always an object, of the named properties alone."""
    if parameters is None:
        return NO_PARAMETERS
    schema = {"type": "object", **parameters}
    if schema["type"] != "object":
        raise GrammarError(f"type is {schema['type']!r}; the arguments are an object")
    if "properties" in schema and not OPEN_KEYWORDS & schema.keys():
        schema["additionalProperties"] = False
    return schema


def with_ids(messages: Sequence[Mapping[str, Any]], length: int) -> list[Mapping[str, Any]]:
    """A conversation whose calls have ids of that length: foreign ones become some, always alike.

    Without an id a call is known by its place, and so is a result.
    """
    made: list[Mapping[str, Any]] = []
    n_calls = n_results = 0
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls):
            ids = (call.get("id") or f"call {n_calls + i}" for i, call in enumerate(calls))
            named = [{**call, "id": _id(i, length)} for call, i in zip(calls, ids, strict=True)]
            made.append({**message, "tool_calls": named})
            n_calls += len(calls)
        elif message["role"] == "tool":
            given = message.get("tool_call_id") or f"call {n_results}"
            made.append({**message, "tool_call_id": _id(given, length)})
            n_results += 1
        else:
            made.append(message)
    return made


def _id(given: Any, length: int) -> str:
    text = str(given)
    if len(text) == length and set(text) <= set(ID_CHARACTERS):
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "replace")).digest()
    return "".join(ID_CHARACTERS[byte % len(ID_CHARACTERS)] for byte in digest[:length])


def held_back(text: str, tag: str) -> int:
    """How many characters at the end of a text could be the beginning of a tag."""
    return next(n for n in range(min(len(tag) - 1, len(text)), -1, -1) if text.endswith(tag[:n]))


def split_at(text: str, tag: str) -> tuple[str, bool, str]:
    """What is before a tag, whether it is there, and what comes after it or could become it."""
    before, found, after = text.partition(tag)
    if found:
        return before, True, after
    cut = len(before) - held_back(before, tag)
    return before[:cut], False, before[cut:]


class CallLog:
    """The calls of an answer so far, and what is new in them, as OpenAI streams it."""

    def __init__(self, id_length: int | None = None) -> None:
        self._id_length = id_length  # of ids that a family's template accepts; None: any
        self._deltas: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []

    def start(self, name: str, call_id: str | None = None) -> None:
        """Another function is called; it gets an id if the model gives none, or a used one."""
        if call_id is None or any(call["id"] == call_id for call in self.calls):
            call_id = self._new_id()
        call: dict[str, Any] = {"id": call_id, "type": "function"}
        function = {"name": name, "arguments": ""}
        self._deltas.append({"index": len(self.calls), **call, "function": dict(function)})
        call["function"] = function
        self.calls.append(call)

    def add(self, arguments: str) -> None:
        """The last function's arguments go on."""
        if arguments:
            self.calls[-1]["function"]["arguments"] += arguments
            delta = {"index": len(self.calls) - 1, "function": {"arguments": arguments}}
            self._deltas.append(delta)

    def take_deltas(self) -> list[dict[str, Any]]:
        """What has been added since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def _new_id(self) -> str:
        if self._id_length is None:
            return "call_" + secrets.token_hex(12)
        return "".join(secrets.choice(ID_CHARACTERS) for _ in range(self._id_length))


class CallParser(ABC):
    """Takes an answer's text in pieces; gives its content, and keeps its calls.

    A state uses up what it understands of the text; it says whether the next one may go on.
    """

    def __init__(
        self, begin: str, id_length: int | None = None, openings: tuple[str, ...] = ()
    ) -> None:
        self._begin = begin.rstrip()
        self._openings = openings  # of calls, behind their announcement; none: any text
        self._log = CallLog(id_length)
        self._text = ""  # not yet understood
        self._shown = ""  # content found by the last push
        self._state: Callable[[], bool] = self._content

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls so far."""
        return self._log.calls

    def take_deltas(self) -> list[dict[str, Any]]:
        """What the last pushes added to the calls."""
        return self._log.take_deltas()

    def push(self, text: str, *, last: bool = False) -> str:
        """Take more text; return what of it is content."""
        self._text += text
        self._shown = ""
        while self._state():
            pass
        if last:
            self._finish()
        return self._shown

    def _finish(self) -> None:
        """No more text comes: what could have become the beginning of a call is content."""
        if self._state == self._announced:
            self._no_call(self._begin)
        if self._state == self._content:
            self._shown, self._text = self._shown + self._text, ""

    def _content(self) -> bool:
        before, found, self._text = split_at(self._text, self._begin)
        self._shown += before
        if found:
            self._state = self._announced if self._openings else self._head
        return found

    def _announced(self) -> bool:
        """The announcement may be a mention only, which is content."""
        rest = self._text.lstrip()
        if rest.startswith(self._openings):
            self._state = self._head
            return True
        if any(opening.startswith(rest) for opening in self._openings):
            return False
        return self._no_call(self._begin)

    @abstractmethod
    def _head(self) -> bool:
        """What follows the announcement."""

    def _no_call(self, begin: str = "") -> bool:
        """What was announced is none: it is content."""
        self._shown += begin
        self._state = self._content
        return True

    def _skip_space(self) -> None:
        self._text = self._text.lstrip()

    def _could_become(self, *tags: str) -> bool:
        """Whether more text may make one of these of all there is."""
        return any(tag.startswith(self._text) for tag in tags)


class JsonEnd:
    """Finds where a JSON object or array ends that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def find(self, text: str) -> int | None:
        """How much of the next piece belongs to it, if it ends there."""
        for position, char in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return position + 1
        return None


class JsonCallParser(CallParser):
    """Reads calls whose arguments are JSON, in which they end by themselves."""

    def __init__(self, begin: str, id_length: int | None, openings: tuple[str, ...] = ()) -> None:
        super().__init__(begin, id_length, openings)
        self._end = JsonEnd()

    def _begin_arguments(self, name: str, rest: str, call_id: str | None = None) -> bool:
        """A function's name is known, and ``rest`` begins with its arguments."""
        self._log.start(name, call_id)
        self._text, self._state = rest, self._arguments
        return True

    def _arguments(self) -> bool:
        end = self._end.find(self._text)
        self._log.add(self._text[:end])
        self._text = "" if end is None else self._text[end:]
        if end is None:
            return False
        self._state = self._after
        return True

    @abstractmethod
    def _after(self) -> bool:
        """What follows the arguments."""
