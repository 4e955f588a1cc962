"""Calls in a section of their own, each a name and the JSON of its arguments: DeepSeek, Kimi."""

from __future__ import annotations

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
from lanewise.text.answers.rules import calls_again, quoted, symbols
from lanewise.text.tokenizer import Tokenizer

FENCE = "```"
BAR, LOW_BLOCK = "\N{FULLWIDTH VERTICAL LINE}", "\N{LOWER ONE EIGHTH BLOCK}"


@dataclass(frozen=True)
class SectionedCalls(CallFormat):
    """How a family writes calls: begin, call, between, call … end.

    A call is ``call_begin``, ``before_name``, the name, ``arguments_tag``, JSON and ``call_end``.
    With ``numbered`` the name stands in an id, ``functions.name:0``, which later turns refer to.
    """

    name: str
    begin: str
    call_begin: str
    arguments_tag: str
    call_end: str
    end: str
    before_name: str = ""
    between: str = ""
    numbered: bool = False
    takes_tools: bool = True

    def tags(self) -> tuple[str, ...]:
        """The texts around calls, names and arguments."""
        head = self.call_begin + self.before_name
        return self.begin, head, self.arguments_tag, self.call_end, self.end

    @cached_property
    def head(self) -> re.Pattern[str]:
        """What stands before a call's arguments; the groups are an id or nothing, and a name."""
        parts = (self.call_begin, self.before_name, self.arguments_tag.strip())
        begin, before, tag = map(re.escape, parts)
        name = r"(functions\.([^<\s{]+?):\d++)" if self.numbered else r"()([^<\s{]+)"
        # White space is not given back, or much of it would be tried in all ways.
        return re.compile(rf"\s*+{begin}\s*+{before}\s*+{name}\s*+{tag}\s*+(?=\{{)")

    def rules(self, tools: Tools, tokenizer: Tokenizer, *, parallel: bool) -> list[str]:
        """A rule for each function."""
        calls, *rules = calls_again(tools, self.between, tokenizer, parallel=parallel)
        rules.insert(0, f"{calls} {symbols(self.end, tokenizer)}")
        before = self.call_begin + self.before_name + ("functions." if self.numbered else "")
        number = r"/:[0-9]{1,4}/" if self.numbered else ""
        begin, tag, end = (
            symbols(text, tokenizer) for text in (before, self.arguments_tag, self.call_end)
        )
        for i, (name, parameters) in enumerate(tools.items()):
            arguments = arguments_rule(parameters, len(tools))
            rules.append(f"call_{i}: {begin} {quoted(name)} {number} {tag} {arguments} {end}")
        return rules

    def parser(self, tools: Tools) -> CallParser:
        """Reads names and JSON."""
        return _SectionParser(self)


def _tag(words: str) -> str:
    """A control token of DeepSeek's."""
    return f"<{BAR}{words.replace(' ', LOW_BLOCK)}{BAR}>"


DEEPSEEK = SectionedCalls(
    "deepseek",
    begin=_tag("tool calls begin"),
    call_begin=_tag("tool call begin"),
    before_name="function" + _tag("tool sep"),
    arguments_tag=f"\n{FENCE}json\n",
    call_end=f"\n{FENCE}" + _tag("tool call end"),
    between="\n",
    end=_tag("tool calls end"),
)
DEEPSEEK_V31 = SectionedCalls(
    "deepseek-v3.1",
    begin=_tag("tool calls begin"),
    call_begin=_tag("tool call begin"),
    arguments_tag=_tag("tool sep"),
    call_end=_tag("tool call end"),
    end=_tag("tool calls end"),
)
KIMI = SectionedCalls(
    "kimi",
    begin="<|tool_calls_section_begin|>",
    call_begin="<|tool_call_begin|>",
    arguments_tag="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    end="<|tool_calls_section_end|>",
    numbered=True,
)


class _SectionParser(JsonCallParser):
    def __init__(self, form: SectionedCalls) -> None:
        super().__init__(form.begin, None)
        self._form = form
        self._ends = (FENCE, form.call_end.strip().removeprefix(FENCE), form.end)

    def _head(self) -> bool:
        match = self._form.head.match(self._text, 0, MAX_HEAD)
        if match is None:
            return len(self._text) >= MAX_HEAD and self._no_call(self._begin)
        return self._begin_arguments(match[2], self._text[match.end() :], match[1] or None)

    def _after(self) -> bool:
        """The call's end and the section's, another call, or text."""
        self._skip_space()
        found = next((tag for tag in self._ends if self._text.startswith(tag)), None)
        if found is not None:
            self._text = self._text[len(found) :]
            return True
        if self._text.startswith(self._form.call_begin):
            self._state = self._head
            return True
        if self._could_become(*self._ends, self._form.call_begin):
            return False
        return self._no_call()
