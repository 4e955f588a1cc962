"""How much one request may bring: of JSON before it is parsed, of each kind of thing after that."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from lanewise.api.conversations import Message, Tool
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.ask import Ask, Conversation
from lanewise.settings import Settings

MAX_STOP_CHARACTERS = 1 << 13  # of all stop strings together, and of all bad words
SMALL_TEXT = 1 << 16  # characters that cannot hold enough of anything to matter


class Parts(NamedTuple):
    """How many of each thing there is in some JSON."""

    values: int
    strings: int
    members: int  # of all objects together
    containers: int

    @classmethod
    def of(cls, text: str) -> Self:
        """Count without parsing; of what is no JSON the part before its first error is right."""
        # Without escapes every quotation mark begins or ends a string.
        plain = text.replace("\\\\", "").replace('\\"', "")
        n_strings = (plain.count('"') + 1) // 2
        if n_strings > MAX_PARTS.strings:  # they need not be told apart
            return cls(0, n_strings, 0, 0)
        outside = "".join(plain.split('"')[::2])
        n_containers = outside.count("[") + outside.count("{")
        return cls(outside.count(",") + n_containers, n_strings, outside.count(":"), n_containers)

    @property
    def n_bytes(self) -> int:
        """What they take once they are parsed and checked, all strings being empty."""
        return sum(count * each for count, each in zip(self, PART_BYTES, strict=True))

    @property
    def parsed_bytes(self) -> int:
        """The same of what is only parsed."""
        return sum(count * each for count, each in zip(self, PARSED_BYTES, strict=True))

    def check(self, most: "Parts", what: str, param: str | None = None) -> None:
        """Raise BadRequestError if there is more of something than in ``most``."""
        for name, count, limit in zip(NAMES, self, most, strict=True):
            if count > limit:
                raise BadRequestError(
                    f"{what} has {count} {name}; accepted: at most {limit}", param=param
                )


# A parser holds the interpreter from its first byte to its last, and what that costs depends on
# what there is, not on bytes: 8 MB of text take 2 ms, as many empty lists 1.3 s and 300 MB. With
# these the worst body takes about 80 ms. A thousand long conversations with tools have less.
MAX_PARTS = Parts(values=3 << 19, strings=1 << 18, members=1 << 17, containers=1 << 16)
# The same for the arguments of tool calls: JSON in strings, which is parsed by itself.
MAX_ARGUMENTS = Parts(values=1 << 18, strings=1 << 16, members=1 << 15, containers=1 << 14)
# As measured: an integer, an empty string, a member, an object of a schema made from another.
PART_BYTES = Parts(values=40, strings=56, members=100, containers=600)
PARSED_BYTES = Parts(values=40, strings=56, members=60, containers=120)
NAMES = ("values", "strings", "members of objects", "objects and lists")


def check_parts(text: str) -> int:
    """What a body takes once it is parsed; raises BadRequestError if it has too many parts."""
    parts = Parts.of(text)
    parts.check(MAX_PARTS, "the body")
    return parts.n_bytes + text.__sizeof__()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBudgets:
    """The most of each kind of thing in one request; settings of the same names."""

    max_messages: int = Settings.max_messages
    max_tools: int = Settings.max_tools
    max_tool_bytes: int = Settings.max_tool_bytes
    max_stop_strings: int = Settings.max_stop_strings
    max_stop_token_ids: int = Settings.max_stop_token_ids
    max_logit_bias: int = Settings.max_logit_bias
    max_texts: int = Settings.max_texts

    @classmethod
    def of(cls, settings: Settings) -> "RequestBudgets":
        """The budgets in a server's settings."""
        return cls(**{name: getattr(settings, name) for name in cls.__dataclass_fields__})

    def check(self, ask: Ask) -> None:
        """Raise BadRequestError that names what is too much, how much it is, and what may be."""
        ending = ask.ending
        check_count("stop", "strings", len(ending.strings), self.max_stop_strings)
        check_count("stop", "characters", sum(map(len, ending.strings)), MAX_STOP_CHARACTERS)
        check_count("stop_token_ids", "ids", len(ending.token_ids), self.max_stop_token_ids)
        words = ask.sampling.bad_words
        check_count("bad_words", "words", len(words), self.max_stop_strings)
        check_count("bad_words", "characters", sum(map(len, words)), MAX_STOP_CHARACTERS)
        check_count("logit_bias", "entries", len(ask.sampling.logit_bias), self.max_logit_bias)
        if isinstance(ask.input, Conversation):
            self.check_messages(ask.input.messages, ask.input.param)
            self.check_tools(ask.tools.listed)

    def check_messages(self, messages: Sequence[Message], param: str = "messages") -> None:
        """The same for a conversation alone."""
        count = len(messages)
        count += sum(len(one.content) for one in messages if isinstance(one.content, list))
        check_count(param, "messages and parts of them", count, self.max_messages)
        arguments = list(_arguments(messages))
        if sum(map(len, arguments)) > SMALL_TEXT:
            counts = zip(*map(Parts.of, arguments), strict=True)
            parts = Parts(*map(sum, counts))
            parts.check(MAX_ARGUMENTS, f"{param}: arguments of tool calls", param)

    def check_tools(self, tools: Sequence[Tool]) -> None:
        """The same for tools alone."""
        check_count("tools", "tools", len(tools), self.max_tools)
        functions = [tool.function for tool in tools]
        size = sum(len(one.description) + text_size(one.parameters) for one in functions)
        check_count("tools", "bytes", size, self.max_tool_bytes)


def check_count(param: str, what: str, count: int, most: int) -> None:
    """Raise BadRequestError if there are too many of something."""
    if count > most:
        message = f"{param}: {count} {what} are too many; accepted: at most {most}"
        raise BadRequestError(message, param=param)


def _arguments(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        calls = (message.model_extra or {}).get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(arguments, str):
                yield arguments


def text_size(value: Any) -> int:
    """About how many characters a value has as JSON, without writing it."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, dict):
        return sum(len(key) + 4 + text_size(item) for key, item in value.items()) + 2
    if isinstance(value, list | tuple):
        return sum(map(text_size, value)) + len(value) + 2
    return value.bit_length() // 3 + 2 if isinstance(value, int) else 8
