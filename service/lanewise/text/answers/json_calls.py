"""Calls that are JSON objects of a name and arguments: Hermes, Qwen, Llama and others."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property

from lanewise.text.answers.calls import (
    MAX_HEAD,
    CallFormat,
    CallParser,
    JsonCallParser,
    Tools,
)
from lanewise.text.answers.grammar_values import arguments_rule
from lanewise.text.answers.rules import any_call, quoted, symbols
from lanewise.text.tokenizer import Tokenizer

PYTHON_TAG = "<|python_tag|>"  # Llama 3 may put it before a call

# A string of JSON: a model that writes freely may put anything between the quotes.
CHARACTERS = r'[^"\\\x00-\x1f]*'
NAME = rf'"{CHARACTERS}(?:\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{{4}}){CHARACTERS})*"'
OPENINGS = ("{",)
HEAD = '{"name": NAME, "KEY": '
NUMBER = r"[0-9]{1,4}"


@dataclass(frozen=True)
class JsonCalls(CallFormat):
    """How a family writes calls: begin, call, between, call … end.

    A call is ``head``, arguments, a brace and ``after_call``. In ``head`` stand ``NAME`` for the
    function's name, ``KEY`` for the key of the arguments and ``NUMBER`` for any number.
    """

    name: str
    begin: str
    between: str | None  # None: one call at most
    end: str
    head: str = HEAD
    arguments: str = "arguments"  # the key of the arguments
    after_call: str = ""
    id_length: int | None = None  # of ids that its template accepts; None: any
    takes_tools: bool = True

    def tags(self) -> tuple[str, ...]:
        """The texts around the objects."""
        return self.begin, self.between or "", self.end, self.after_call, PYTHON_TAG

    @cached_property
    def head_pattern(self) -> re.Pattern[str]:
        """What stands before a call's arguments; the group is the function's name."""
        words = {"NAME": f"({NAME})", "KEY": "(?:arguments|parameters)", "NUMBER": NUMBER}
        parts = re.split("(NAME|KEY|NUMBER)", self.head)
        pattern = "".join(words.get(part, re.escape(part)) for part in parts)
        return re.compile(rf"\s*{pattern}(?=\{{)")

    def rules(self, tools: Tools, tokenizer: Tokenizer, *, parallel: bool) -> list[str]:
        """A rule for each function."""
        after = symbols(self.after_call, tokenizer)
        rules = [f"call: ({any_call(tools)}) {after}"]
        for i, (name, parameters) in enumerate(tools.items()):
            head = self._head_rule(name)
            rules.append(f'call_{i}: {head} {arguments_rule(parameters, len(tools))} "}}"')
        more = ""
        if parallel and self.between is not None:
            more = f"({symbols(self.between, tokenizer)} call)*"
        return [f"calls: call {more} {symbols(self.end, tokenizer)}", *rules]

    def _head_rule(self, name: str) -> str:
        head = self.head.replace("KEY", self.arguments)
        parts = (part.replace("NAME", json.dumps(name)) for part in head.split("NUMBER"))
        return f" /{NUMBER}/ ".join(map(quoted, parts))

    def openings(self, tools: Tools) -> tuple[str, ...]:
        """An object."""
        return OPENINGS

    def parser(self, tools: Tools) -> CallParser:
        """Reads JSON."""
        return _ObjectParser(self)


HERMES = JsonCalls(
    "hermes",
    begin="<tool_call>\n",
    between="\n<tool_call>\n",
    end="",
    after_call="\n</tool_call>",
)
MISTRAL = JsonCalls("mistral", begin="[TOOL_CALLS][", between=", ", end="]", id_length=9)
PHI = JsonCalls("phi", begin="<|tool_call|>[", between=", ", end="]<|/tool_call|>")
GRANITE = JsonCalls("granite", begin="<|tool_call|>[", between=", ", end="]")
NEMOTRON = JsonCalls("nemotron", begin="<TOOLCALL>[", between=", ", end="]</TOOLCALL>")
HUNYUAN = JsonCalls("hunyuan", begin="<tool_calls>[", between=", ", end="]</tool_calls>")
APERTUS = JsonCalls(
    "apertus", begin="<|tools_prefix|>[", between=", ", end="]<|tools_suffix|>", head="{NAME: "
)
COMMAND = JsonCalls(
    "command",
    begin="<|START_ACTION|>[\n    ",
    between=",\n    ",
    end="\n]<|END_ACTION|>",
    head='{"tool_call_id": "NUMBER", "tool_name": NAME, "KEY": ',
    arguments="parameters",
)
LLAMA = JsonCalls("llama", begin="", between=None, end="", arguments="parameters")
# For templates that know no tools: the most widespread format, explained in the prompt.
GENERIC = JsonCalls(
    "generic",
    begin=HERMES.begin,
    between=HERMES.between,
    end="",
    after_call=HERMES.after_call,
    takes_tools=False,
)


class _ObjectParser(JsonCallParser):
    def __init__(self, form: JsonCalls) -> None:
        super().__init__(form.begin, form.id_length, OPENINGS)
        self._form = form
        if not self._begin:
            self._state = self._first_character

    def _finish(self) -> None:
        super()._finish()
        if self._state == self._first_character:
            self._shown, self._text = self._shown + self._text, ""

    def _first_character(self) -> bool:
        text = self._text.removeprefix(PYTHON_TAG)
        if not text or (text == self._text and PYTHON_TAG.startswith(text)):
            return False
        self._text = text
        self._state = self._head if text.startswith("{") else self._rest
        return True

    def _rest(self) -> bool:
        self._shown, self._text = self._shown + self._text, ""
        return False

    def _head(self) -> bool:
        match = self._form.head_pattern.match(
            self._text, 0, MAX_HEAD
        )  # a bound on what each piece costs
        if match is None:
            return False
        return self._begin_arguments(json.loads(match[1]), self._text[match.end() :])

    def _after(self) -> bool:
        expected = "}" + self._form.after_call + (self._form.between or "")
        if not self._text.startswith(expected) or self._form.between is None:
            return False
        self._text, self._state = self._text[len(expected) :], self._head
        return True
