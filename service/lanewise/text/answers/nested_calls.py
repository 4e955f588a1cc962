"""Calls whose arguments are tags within tags, as MiniMax M3 writes them.

A token stands before each tag. Objects are tags of their properties, arrays tags named ``item``;
strings stand as they are, numbers and words as in JSON. What is null is left out.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cached_property

from lanewise.text.answers.calls import MAX_HEAD, CallFormat, CallParser, Tools, split_at
from lanewise.text.answers.nested_grammar import ITEM, NestedRules
from lanewise.text.answers.objects import UNKNOWN, Readers
from lanewise.text.answers.rules import any_call, symbols
from lanewise.text.answers.values import PropertySchema, quoted
from lanewise.text.tokenizer import Tokenizer

TAG = re.compile(r"<(/?)([^<>\n]+)>")
MAX_DEEP = 60  # tags within tags; deeper ones are text


@dataclass(frozen=True)
class NestedCalls(CallFormat):
    """How a family writes all calls of an answer: one section, in which each has a tag."""

    name: str
    mark: str  # before each tag
    takes_tools: bool = True

    @property
    def begin(self) -> str:  # type: ignore[override]
        """What announces calls."""
        return f"{self.mark}<tool_call>"

    @property
    def end(self) -> str:
        """What is behind the last call."""
        return f"{self.mark}</tool_call>"

    @property
    def before_name(self) -> str:
        """What is before a function's name."""
        return f'{self.mark}<invoke name="'

    @property
    def function_end(self) -> str:
        """What is behind a function's arguments."""
        return f"{self.mark}</invoke>"

    def tags(self) -> tuple[str, ...]:
        """The texts around names and arguments."""
        return self.begin, self.end, self.before_name, self.function_end

    def rules(self, tools: Tools, tokenizer: Tokenizer, *, parallel: bool) -> list[str]:
        """A rule for each function."""
        nested = NestedRules(self.mark, tokenizer)
        again = " call*" if parallel else ""
        own = [
            f"calls: ({any_call(tools)}){again} {symbols(self.end, tokenizer)}",
            f"call: {' | '.join(f'again_{i}' for i in range(len(tools)))}",
        ]
        for i, (name, parameters) in enumerate(tools.items()):
            head = f'{self.before_name}{name}">'
            end = symbols(f"{self.function_end}\n", tokenizer)
            own.append(f"body_{i}: {nested.of(parameters)} {end}")
            # The line break is part of the first tag: by itself it could be text, too.
            for rule, text in (("call", f"\n{head}"), ("again", head)):
                own.append(f"{rule}_{i}: {symbols(text, tokenizer)} body_{i}")
        return own + nested.rules

    def openings(self, tools: Tools) -> tuple[str, ...]:
        """What is before names."""
        return (self.before_name,)

    def parser(self, tools: Tools) -> CallParser:
        """Reads values by the schemas of ``tools``."""
        return _NestedCallParser(self, tools)


MINIMAX_M3 = NestedCalls("minimax-m3", mark="]<]minimax[>[")


class _Reading:
    """What a value is read by, and the values in it: found once for all items of an array."""

    def __init__(self, schema: PropertySchema) -> None:
        self.schema = schema
        self._named: dict[str, _Reading] = {}

    @cached_property
    def _readers(self) -> Readers:
        return Readers.of_schema(self.schema)

    @cached_property
    def items(self) -> _Reading:
        """Of an array."""
        return _Reading(Readers.of_items(self.schema))

    def property(self, name: str) -> _Reading:
        """Of an object."""
        if name not in self._named:
            self._named[name] = _Reading(self._readers.find(name))
        return self._named[name]

    @cached_property
    def may_have_items(self) -> bool:
        """Whether tags named as items make an array, and not an object that has such a property."""
        types = self.schema.types
        return "array" in types and not ("object" in types and ITEM in self._readers.named)


@dataclass
class _Node:
    """A value that is no plain string: its text, or the tags in it."""

    text: list[str] = field(default_factory=list)
    tags: list[tuple[str, _Node]] = field(default_factory=list)

    def to_json(self, reading: _Reading) -> str:
        """Its JSON, by its schema."""
        if self.tags:
            return self._nested(reading)
        text, schema = "".join(self.text), reading.schema
        if not schema.takes_text and not text.strip():
            for kind, empty in (("array", "[]"), ("object", "{}")):
                if kind in schema.types:
                    return empty
        made = schema.to_json(text)
        # Objects and lists are tags: a text that looks like one is a string, if it may be.
        return quoted(text) if made[:1] in ("{", "[") and schema.takes_text else made

    def _nested(self, reading: _Reading) -> str:
        if all(name == ITEM for name, _ in self.tags) and reading.may_have_items:
            return f"[{', '.join(node.to_json(reading.items) for _, node in self.tags)}]"
        made = {name: node.to_json(reading.property(name)) for name, node in self.tags}
        return "{" + ", ".join(f"{quoted(name)}: {value}" for name, value in made.items()) + "}"


class _NestedCallParser(CallParser):
    def __init__(self, form: NestedCalls, tools: Tools) -> None:
        super().__init__(form.begin, openings=form.openings(tools))
        self._form = form
        self._tools = tools
        self._readers = UNKNOWN  # of the properties of this function
        self._schema = UNKNOWN.other
        self._key = ""
        self._is_first = True  # of a function's properties
        self._open: list[_Node] = []  # of a value that is no string: its tags that are open

    def _head(self) -> bool:
        self._skip_space()
        before = self._form.before_name
        match = re.compile(re.escape(before) + r'([^<>"\s]+)">').match(self._text, 0, MAX_HEAD)
        if match is None:
            begun = self._text.startswith(before) or self._could_become(before)
            if begun and len(self._text) < MAX_HEAD:
                return False
            return self._no_call(self._begin)
        self._text = self._text[match.end() :]
        self._log.start(match[1])
        self._log.add("{")
        self._is_first = True
        # Arguments of a tool that was not offered may have any type.
        self._readers = Readers.of(self._tools[match[1]]) if match[1] in self._tools else UNKNOWN
        self._state = self._properties
        return True

    def _properties(self) -> bool:
        """Before a property, or the end of the function."""
        self._skip_space()
        found = self._tag()
        if found is None:
            return False
        closes, name, self._text = found
        if closes:
            self._log.add("}")
            self._state = self._between
        elif name:
            self._begin_value(name)
        return True

    def _tag(self) -> tuple[bool, str, str] | None:
        """The next tag, and what is behind it; None if more text is needed.

        Without a name it is text, up to the next tag.
        """
        mark = self._form.mark
        if not self._text.startswith(mark):
            if self._could_become(mark):
                return None
            before, _, rest = split_at(self._text, mark)
            found = self._text[len(before) :]
            return (False, "", found) if before else None
        match = TAG.match(self._text, len(mark), len(mark) + MAX_HEAD)
        if match is not None:
            return bool(match[1]), match[2], self._text[match.end() :]
        rest = self._text[len(mark) :]
        if len(rest) < MAX_HEAD and re.fullmatch(r"(<[^<>\n]*)?", rest):
            return None
        return False, "", rest

    def _begin_value(self, key: str) -> None:
        comma = "" if self._is_first else ", "
        self._is_first = False
        self._key, self._schema = key, self._readers.find(key)
        quote = '"' if self._schema.is_text else ""
        self._log.add(f"{comma}{quoted(key)}: {quote}")
        self._open = [_Node()]
        self._state = self._text_value if self._schema.is_text else self._value

    def _text_value(self) -> bool:
        value, found, self._text = split_at(self._text, f"{self._form.mark}</{self._key}>")
        self._log.add(json.dumps(value, ensure_ascii=False)[1:-1])
        if found:
            self._log.add('"')
            self._state = self._properties
        return found

    def _value(self) -> bool:
        """Text and tags, up to the tag that ends the value."""
        mark, node = self._form.mark, self._open[-1]
        if not self._text.startswith(mark):
            text, found, self._text = split_at(self._text, mark)
            node.text.append(text)
            if not found:
                return False
            self._text = mark + self._text
        found_tag = self._tag()
        if found_tag is None:
            return False
        closes, name, rest = found_tag
        if closes:
            self._open.pop()
        elif name and len(self._open) < MAX_DEEP:
            inner = _Node()
            node.tags.append((name, inner))
            self._open.append(inner)
        else:
            node.text.append(self._text[: len(self._text) - len(rest)])
        self._text = rest
        if not self._open:
            self._log.add(node.to_json(_Reading(self._schema)))
            self._state = self._properties
        return True

    def _between(self) -> bool:
        """After a function: another one, the end of all calls, or text."""
        form = self._form
        self._skip_space()
        if self._text.startswith(form.before_name):
            self._state = self._head
        elif self._text.startswith(form.end):
            self._text = self._text[len(form.end) :]
        elif self._text.startswith(form.begin):
            self._text, self._state = self._text[len(form.begin) :], self._head
        elif self._could_become(form.before_name, form.end, form.begin):
            return False
        else:
            return self._no_call()
        return True
