"""Calls whose arguments are texts between tags, as Qwen3-Coder, GLM-4.5 and others write them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from lanewise.text.answers.alternatives import Root
from lanewise.text.answers.any_order import in_all_orders
from lanewise.text.answers.calls import (
    MAX_HEAD,
    CallFormat,
    CallParser,
    Tools,
    argument_schema,
    split_at,
)
from lanewise.text.answers.grammar_values import in_slashes
from lanewise.text.answers.objects import UNKNOWN, ObjectForm, Readers, object_forms
from lanewise.text.answers.rules import calls_again, quoted, symbols, text_up_to
from lanewise.text.answers.string_rules import whole_pattern
from lanewise.text.answers.text_values import TextValues
from lanewise.text.grammar import GrammarError, styled
from lanewise.text.tokenizer import Tokenizer

NAME = r'[^<>"\s]+'
KEY = r'[^<>"\n]+'


@dataclass(frozen=True)
class TaggedCalls(CallFormat):
    """How a family writes a call: begin, name, key, value, key, value … end.

    A pair is what stands before and after. Between the parts there may be white space; models
    write line breaks where ``line`` says so. Values begin and end with one if ``value_lines``.
    """

    name: str
    begin: str
    around_name: tuple[str, str]
    around_key: tuple[str, str]
    around_value: tuple[str, str]
    function_end: str  # empty: a function ends with the call
    end: str
    line: str = "\n"
    value_lines: bool = False
    takes_tools: bool = True

    def tags(self) -> tuple[str, ...]:
        """The texts around names, keys and values."""
        pairs = (self.around_name, self.around_key, self.around_value)
        return self.begin, self.end, self.function_end, *(tag for pair in pairs for tag in pair)

    @cached_property
    def head(self) -> re.Pattern[str]:
        """A function's name and what is around it."""
        before, after = map(re.escape, self.around_name)
        return re.compile(rf"{before}({NAME}){after}" if after else rf"({NAME})(?=[<\s])")

    @cached_property
    def key(self) -> re.Pattern[str]:
        """A property's name, what is around it, and what is before the value."""
        (before, after), value = map(re.escape, self.around_key), re.escape(self.around_value[0])
        return re.compile(rf"{before}({KEY}){after}" + (rf"\s*{value}" if value else ""))

    def rules(self, tools: Tools, tokenizer: Tokenizer, *, parallel: bool) -> list[str]:
        """A rule for each function and for each of its properties."""
        again = calls_again(tools, f"\n{self.begin}", tokenizer, parallel=parallel)
        return again + self.functions(tools, tokenizer)

    def functions(self, tools: Tools, tokenizer: Tokenizer) -> list[str]:
        """``call_0`` is what the first function's call has behind ``begin``."""
        rules = [text_up_to("free_value", self.around_value[1], tokenizer)]
        values = TextValues(self._value_end, self.around_value[1], "free_value", tokenizer)
        for i, (name, parameters) in enumerate(tools.items()):
            schema = argument_schema(parameters)
            styled(schema)  # what no grammar can enforce is an error in all of them
            forms = object_forms(schema, schema)
            names = [f"call_{i}_{j}" for j in range(len(forms))]
            for one, form in zip(names, forms, strict=True):
                n_objects = len(forms) * len(tools)
                rules += self._arguments(one, form, schema, values, tokenizer, n_objects)
            open_name, close_name = self.around_name
            begin = f"{self.line}{open_name}{name}{close_name}" if open_name else name
            end = "".join(self.line + part for part in (self.function_end, self.end) if part)
            body = " | ".join(names)
            rules.append(
                f"call_{i}: {symbols(begin, tokenizer)} ({body}) {symbols(end, tokenizer)}"
            )
        return rules + values.rules

    def _arguments(
        self,
        rule: str,
        form: ObjectForm,
        root: Root,
        values: TextValues,
        tokenizer: Tokenizer,
        n_objects: int,
    ) -> Iterator[str]:
        """``rule``: the properties in any order, then others if there may be some."""
        before, after = self._around_keys()
        named = {f"{rule}_{i}": key in form.required for i, key in enumerate(form.properties)}
        for i, (key, value) in enumerate(form.properties.items()):
            if re.fullmatch(KEY, key) is None:
                raise GrammarError(f"the property {key[:40]!r} has a character that ends names")
            head = symbols(before + key + after, tokenizer)
            yield f"{rule}_{i}: {head} {values.of(value, root)}"
        more = []
        others = [(f"/{KEY}/ & /{in_slashes(whole_pattern(one))}/", v) for one, v in form.patterns]
        if form.other is not False:
            others.append((f"/{KEY}/", form.other))
        taken = "|".join(map(re.escape, form.properties))
        for j, (names, value) in enumerate(others):
            more.append(f"{rule}_more_{j}*")
            terminal = f"{rule}_key_{j}".upper()
            yield f"{terminal}: {names}" + (f" & ~/{in_slashes(taken)}/" if taken else "")
            key_rule = f"{symbols(before, tokenizer)} {terminal} {symbols(after, tokenizer)}"
            yield f"{rule}_more_{j}: {key_rule} {values.of(value, root)}"
        last = " ".join(more) or quoted("")
        free = in_all_orders(f"{rule}_after", named, n_objects, last=last)
        yield from free or ()
        in_order = [one if needed else f"{one}?" for one, needed in named.items()]
        yield f"{rule}: {f'{rule}_after_0' if free else ' '.join([*in_order, last])}"

    def _around_keys(self) -> tuple[str, str]:
        """What is written before a key, and from there to the value."""
        before, after = self.around_key
        between = self.line + self.around_value[0] if self.around_value[0] else ""
        return self.line + before, after + between + ("\n" if self.value_lines else "")

    @property
    def _value_end(self) -> str:
        return ("\n" if self.value_lines else "") + self.around_value[1]

    def openings(self, tools: Tools) -> tuple[str, ...]:
        """What is before names; where that is nothing, the names and what is behind them."""
        if self.around_name[0]:
            return self.around_name[:1]
        return tuple(name + self.line for name in tools)

    def parser(self, tools: Tools) -> CallParser:
        """Reads values by the schemas of ``tools``."""
        return _TaggedCallParser(self, tools)


QWEN3_CODER = TaggedCalls(
    "qwen3-coder",
    begin="<tool_call>",
    around_name=("<function=", ">"),
    around_key=("<parameter=", ">"),
    around_value=("", "</parameter>"),
    function_end="</function>",
    end="</tool_call>",
    value_lines=True,
)
SEED = TaggedCalls(
    "seed",
    begin="<seed:tool_call>",
    around_name=("<function=", ">"),
    around_key=("<parameter=", ">"),
    around_value=("", "</parameter>"),
    function_end="</function>",
    end="</seed:tool_call>",
)
MINIMAX = TaggedCalls(
    "minimax",
    begin="<minimax:tool_call>",
    around_name=('<invoke name="', '">'),
    around_key=('<parameter name="', '">'),
    around_value=("", "</parameter>"),
    function_end="</invoke>",
    end="</minimax:tool_call>",
)
GLM = TaggedCalls(
    "glm",
    begin="<tool_call>",
    around_name=("", ""),
    around_key=("<arg_key>", "</arg_key>"),
    around_value=("<arg_value>", "</arg_value>"),
    function_end="",
    end="</tool_call>",
)
GLM_TIGHT = replace(GLM, name="glm-tight", line="")


class _TaggedCallParser(CallParser):
    def __init__(self, form: TaggedCalls, tools: Tools) -> None:
        super().__init__(form.begin, openings=form.openings(tools))
        self._form = form
        self._tools = tools
        self._readers = UNKNOWN  # of the properties of this function
        self._schema = UNKNOWN.other
        self._value_parts: list[str] = []  # of a value that is no string
        self._is_first = True  # of a function's properties
        self._at_start = False  # of a value
        self._held_line = ""  # at the end of a value's text, until more of the value comes

    def _head(self) -> bool:
        self._skip_space()
        match = self._form.head.match(self._text, 0, MAX_HEAD)
        if match is None:
            if self._could_be_head() and len(self._text) < MAX_HEAD:
                return False
            return self._no_call(self._begin)
        self._text = self._text[match.end() :]
        self._start(match[1])
        return True

    def _could_be_head(self) -> bool:
        before = self._form.around_name[0]
        if not before:
            return not self._text.startswith(("<", ">"))
        return self._text.startswith(before) or self._could_become(before)

    def _start(self, name: str) -> None:
        self._log.start(name)
        self._log.add("{")
        self._is_first = True
        # Arguments of a tool that was not offered may have any type.
        self._readers = Readers.of(self._tools[name]) if name in self._tools else UNKNOWN
        self._state = self._properties

    def _properties(self) -> bool:
        form = self._form
        self._skip_space()
        end = form.function_end or form.end
        if self._text.startswith((end, form.end)):
            self._log.add("}")
            self._text = self._text.removeprefix(end)
            self._state = self._between
            return True
        match = form.key.match(self._text, 0, MAX_HEAD)
        if match is not None:
            self._text = self._text[match.end() :]
            self._begin_value(match[1])
            return True
        if self._text.startswith(form.around_key[0]) and len(self._text) < MAX_HEAD:
            return False
        if self._could_become(end, form.end, form.around_key[0]):
            return False
        # Whatever this is, it ends where the next tag begins.
        position = self._text.find("<", 1)
        self._text = self._text[position:] if position > 0 else ""
        return bool(self._text)

    def _begin_value(self, key: str) -> None:
        comma = "" if self._is_first else ", "
        self._is_first = False
        self._schema = self._readers.find(key)
        quote = '"' if self._schema.is_text else ""
        self._log.add(f"{comma}{json.dumps(key, ensure_ascii=False)}: {quote}")
        self._at_start, self._held_line = self._form.value_lines, ""
        self._state = self._value

    def _value(self) -> bool:
        end = self._form.around_value[1]
        if self._at_start:
            if not self._text:
                return False
            self._text = self._text.removeprefix("\n")
            self._at_start = False
        value, found, self._text = split_at(self._text, end)
        self._add_to_value(value)
        if found:
            self._end_value()
        return found

    def _add_to_value(self, text: str) -> None:
        if self._form.value_lines and text:
            # The line break before the end is not the value's.
            text = self._held_line + text
            self._held_line = "\n" if text.endswith("\n") else ""
            text = text.removesuffix("\n")
        if self._schema.is_text:
            self._log.add(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._value_parts.append(text)

    def _end_value(self) -> None:
        if self._schema.is_text:
            self._log.add('"')
        else:
            self._log.add(self._schema.to_json("".join(self._value_parts)))
            self._value_parts.clear()
        self._state = self._properties

    def _between(self) -> bool:
        """After a function: the call's end, another function or call, or text."""
        form = self._form
        self._skip_space()
        if self._text.startswith(form.begin):
            self._text, self._state = self._text[len(form.begin) :], self._head
        elif self._text.startswith(form.end):
            self._text = self._text[len(form.end) :]
        elif form.function_end and self._text.startswith(form.around_name[0]):
            self._state = self._head
        elif self._could_become(form.begin, form.end, form.around_name[0]):
            return False
        else:
            return self._no_call()
        return True
