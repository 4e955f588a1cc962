"""Calls written as Python does, ``[name(key="value"), …]`` or one a line: LFM2, OLMo 3."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lanewise.text.answers.alternatives import Root
from lanewise.text.answers.any_order import in_all_orders
from lanewise.text.answers.calls import (
    MAX_HEAD,
    CallFormat,
    CallParser,
    Tools,
    argument_schema,
)
from lanewise.text.answers.grammar_values import json_rule
from lanewise.text.answers.objects import UNKNOWN, ObjectForm, Readers, object_forms
from lanewise.text.answers.rules import calls_again, quoted, symbols
from lanewise.text.answers.values import PropertySchema
from lanewise.text.answers.values import quoted as json_text
from lanewise.text.grammar import GrammarError, rule_of_json
from lanewise.text.tokenizer import Tokenizer

# Nothing is given back, or much white space would be tried in all ways.
NAME = re.compile(r"""\s*+\[?\s*+([^\s()\[\]{}"',=]++)\s*+\(""")
KEY = re.compile(r"""([^\s()\[\]{}"',=]++)\s*+=\s*+""")
KEY_START = re.compile(r"""[^\s()\[\]{}"',=]++\s*+""")


@dataclass(frozen=True)
class PythonCalls(CallFormat):
    """How a family writes calls: begin, calls, which may be a list, end."""

    name: str
    begin: str
    end: str
    brackets: tuple[str, str] = ("[", "]")
    between: str = ", "
    json_words: bool = False  # true, false and null too
    takes_tools: bool = True

    def tags(self) -> tuple[str, ...]:
        """The texts around the list."""
        return self.begin, self.end

    def rules(self, tools: Tools, tokenizer: Tokenizer, *, parallel: bool) -> list[str]:
        """A rule for each function, and two for each of its properties."""
        calls, *rules = calls_again(tools, self.between, tokenizer, parallel=parallel)
        body = calls.removeprefix("calls: ")
        before, after = map(quoted, self.brackets)
        rules.insert(0, f"calls: {before} {body} {after} {symbols(self.end, tokenizer)}")
        for i, (name, parameters) in enumerate(tools.items()):
            schema = argument_schema(parameters)
            forms = object_forms(schema, schema)
            begins = " | ".join(f"call_{i}_{j}_0" for j in range(len(forms)))
            rules.append(f'call_{i}: {quoted(name)} "(" ({begins}) ")"')
            n_objects = len(forms) * len(tools)
            for j, form in enumerate(forms):
                rules += _arguments(f"call_{i}_{j}", form, schema, self.json_words, n_objects)
        return rules

    def parser(self, tools: Tools) -> CallParser:
        """Reads Python's literals, and JSON where it is none of them."""
        return _PythonCallParser(self, tools)


LFM2 = PythonCalls("lfm2", begin="<|tool_call_start|>", end="<|tool_call_end|>")
OLMO = PythonCalls(
    "olmo",
    begin="<function_calls>",
    end="</function_calls>",
    brackets=("", ""),
    between="\n",
    json_words=True,
)


def _arguments(
    rule: str, form: ObjectForm, schema: Root, json_words: bool, n_objects: int
) -> Iterator[str]:
    """``rule_0``: all arguments, in any order where their number allows it."""
    named = {f"{rule}_p{i}": key in form.required for i, key in enumerate(form.properties)}
    for one, (key, value) in zip(named, form.properties.items(), strict=True):
        if KEY_START.fullmatch(key) is None or key != key.strip():
            raise GrammarError(f"the property {key[:40]!r} has a character that ends names")
        shown = _value_rule(PropertySchema(value, schema), json_words)
        yield f"{one}: {quoted(key + '=')} ({shown})"
    yield from in_all_orders(rule, named, n_objects, '", " ') or _in_order(rule, named)


def _in_order(rule: str, named: Mapping[str, bool]) -> Iterator[str]:
    """Arguments in their order: ``rule_i`` before any of them, ``rule_next_i`` after some."""
    for i, (one, is_needed) in enumerate(named.items()):
        for kind, comma in (("", ""), ("next_", '", " ')):
            skipped = "" if is_needed else f" | {rule}_{kind}{i + 1}"
            yield f"{rule}_{kind}{i}: {comma}{one} {rule}_next_{i + 1}{skipped}"
    for kind in ("", "next_") if named else ("",):
        yield f'{rule}_{kind}{len(named)}: ""'


def _value_rule(schema: PropertySchema, json_words: bool) -> str:
    """A value: Python's words, and JSON, which for numbers and strings Python reads alike."""
    choices = schema.choices()
    if choices is None and schema.types <= {"null", "boolean"}:
        choices = [None] if "null" in schema.types else []
        choices += [True, False] if "boolean" in schema.types else []
    if choices is not None:
        shown = dict.fromkeys(map(_python, choices))
        shown |= dict.fromkeys(map(json.dumps, choices)) if json_words else {}
        return " | ".join(map(quoted, shown))
    if schema.grammar is not None:
        return json_rule(schema.standalone())
    return rule_of_json(schema.standalone())


def _python(value: object) -> str:
    """A value as Python writes it, strings in double quotes."""
    return json_text(value) if isinstance(value, str) else repr(value)


class _ValueEnd:
    """Finds where a value of a call ends that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def find(self, text: str) -> int | None:
        """How much of the next piece belongs to it, if it ends there."""
        for position, char in enumerate(text):
            if self._quote:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == self._quote:
                    self._quote = ""
            elif char in "\"'":
                self._quote = char
            elif char in "([{":
                self._depth += 1
            elif self._depth == 0 and char in ",)":
                return position
            elif char in ")]}":
                self._depth -= 1
        return None


class _PythonCallParser(CallParser):
    def __init__(self, form: PythonCalls, tools: Tools) -> None:
        super().__init__(form.begin)
        self._form = form
        self._tools = tools
        self._readers = UNKNOWN  # of the properties of this function
        self._key = ""  # empty: of a value without a name, which no schema has
        self._value_parts: list[str] = []
        self._value_end = _ValueEnd()
        self._is_first = True
        self._in_list = bool(form.brackets[0])

    def _head(self) -> bool:
        match = NAME.match(self._text, 0, MAX_HEAD)
        if match is None:
            return len(self._text) >= MAX_HEAD and self._no_call(self._begin)
        self._text, self._state = self._text[match.end() :], self._arguments
        self._log.start(match[1])
        self._log.add("{")
        self._is_first = True
        self._readers = Readers.of(self._tools[match[1]]) if match[1] in self._tools else UNKNOWN
        return True

    def _arguments(self) -> bool:
        self._skip_space()
        if self._text.startswith(")"):
            self._log.add("}")
            self._text, self._state = self._text[1:], self._after
            return True
        if self._text.startswith(","):
            self._text = self._text[1:]
            return True
        match = KEY.match(self._text, 0, MAX_HEAD)
        could_be = KEY_START.fullmatch(self._text) is not None
        if match is None and (not self._text or (could_be and len(self._text) < MAX_HEAD)):
            return False
        self._key = "" if match is None else match[1]
        # White space before a value may still come.
        if match is not None and match.end() == len(self._text):
            return False
        self._text = self._text if match is None else self._text[match.end() :]
        self._value_end, self._state = _ValueEnd(), self._value
        if self._key:
            comma = "" if self._is_first else ", "
            self._log.add(f"{comma}{json_text(self._key)}: ")
            self._is_first = False
        return True

    def _value(self) -> bool:
        end = self._value_end.find(self._text)
        self._value_parts.append(self._text[:end])
        self._text = "" if end is None else self._text[end:]
        if end is None:
            return False
        text = "".join(self._value_parts).strip()
        self._value_parts.clear()
        if self._key:
            self._log.add(_json_of(text, self._readers.find(self._key)))
        self._state = self._arguments
        return True

    def _after(self) -> bool:
        """Another call, the list's end and the tag after it, or text."""
        self._skip_space()
        for tag in (",", "]", self._form.end):
            if self._text.startswith(tag):
                self._text = self._text[len(tag) :]
                self._state = self._head if tag == "," else self._after
                if tag == self._form.end and not self._in_list:
                    self._no_call()
                return True
        if self._could_become(self._form.end):
            return False
        if self._in_list:
            return self._no_call()
        self._state = self._head
        return True


def _json_of(text: str, schema: PropertySchema) -> str:
    """The JSON of a value that is JSON or a literal of Python; anything else is a string."""
    for read in (json.loads, ast.literal_eval):
        try:
            return json.dumps(read(text), ensure_ascii=False, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    return schema.to_json(text)
