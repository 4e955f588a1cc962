"""Calls that name a function and then give the JSON of its arguments: newer Mistral models."""

from __future__ import annotations

import re
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class NamedCalls(CallFormat):
    """How a family writes a call: begin, name, perhaps an id, and arguments."""

    name: str
    begin: str
    id_tag: str  # empty: calls have no ids
    arguments_tag: str
    id_length: int
    takes_tools: bool = True

    def tags(self) -> tuple[str, ...]:
        """The texts before names, ids and arguments."""
        return self.begin, self.id_tag, self.arguments_tag

    def rules(self, tools: Tools, tokenizer: Tokenizer, *, parallel: bool) -> list[str]:
        """A rule for each function."""
        rules = calls_again(tools, self.begin, tokenizer, parallel=parallel)
        marked = ""
        if self.id_tag:
            marked = f"({symbols(self.id_tag, tokenizer)} /[a-zA-Z0-9]{{{self.id_length}}}/)?"
        tag = symbols(self.arguments_tag, tokenizer)
        for i, (name, parameters) in enumerate(tools.items()):
            arguments = arguments_rule(parameters, len(tools))
            rules.append(f"call_{i}: {quoted(name)} {marked} {tag} {arguments}")
        return rules

    def parser(self, tools: Tools) -> CallParser:
        """Reads names and JSON."""
        return _NamedCallParser(self)


MISTRAL_NAMED = NamedCalls(
    "mistral-named", begin="[TOOL_CALLS]", id_tag="", arguments_tag="[ARGS]", id_length=9
)
MISTRAL_WITH_IDS = NamedCalls(
    "mistral-ids", begin="[TOOL_CALLS]", id_tag="[CALL_ID]", arguments_tag="[ARGS]", id_length=9
)


class _NamedCallParser(JsonCallParser):
    def __init__(self, form: NamedCalls) -> None:
        super().__init__(form.begin, form.id_length)
        tag, mark = re.escape(form.arguments_tag), re.escape(form.id_tag)
        marked = rf"(?:{mark}\s*\w*\s*)?" if mark else ""
        self._pattern = re.compile(rf"\s*([^\[\]{{}}\s]+)\s*{marked}{tag}\s*(?=\{{)")

    def _head(self) -> bool:
        match = self._pattern.match(self._text, 0, MAX_HEAD)
        if match is None:
            return len(self._text) >= MAX_HEAD and self._no_call(self._begin)
        return self._begin_arguments(match[1], self._text[match.end() :])

    def _after(self) -> bool:
        self._skip_space()
        if self._could_become(self._begin):
            return False
        return self._no_call()
