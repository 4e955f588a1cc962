"""Rules of values between tags: strings as they are, everything else as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from lanewise.text.answers.alternatives import Parts, Root, alternatives, same, types_of, values_of
from lanewise.text.answers.grammar_values import text_rule
from lanewise.text.answers.json_values import json_value
from lanewise.text.answers.rules import quoted, symbols
from lanewise.text.answers.string_rules import StringRules, says_something
from lanewise.text.answers.values import PropertySchema
from lanewise.text.grammar import GrammarError
from lanewise.text.tokenizer import Tokenizer

NUMBERS = frozenset({"integer", "number"})
WORDS = {"null": ["null"], "boolean": ["true", "false"]}


class TextValues:
    """Makes the rules of one grammar's values, each with the tag that ends it.

    ``free`` is the rule of any text with its end, and ``tag`` what no text has in it. Names of
    rules begin with ``prefix``.
    """

    def __init__(
        self, end: str, tag: str, free: str, tokenizer: Tokenizer, prefix: str = "text"
    ) -> None:
        self._end, self._free = symbols(end, tokenizer), free
        self._strings = StringRules(prefix, end, tag, tokenizer)

    @property
    def rules(self) -> list[str]:
        """The rules that the values refer to."""
        return self._strings.rules

    def of(self, schema: Any, root: Root) -> str:
        """A value; GrammarError if there is none, or if its schema cannot be enforced."""
        found = PropertySchema(schema, root)
        if found.grammar is not None:
            return f"{text_rule(found.grammar)} {self._end}"
        forms = alternatives(schema, root)
        if not forms:
            raise GrammarError("nothing obeys the schema of a property")
        held = frozenset(kind for parts in forms for kind in _held(parts))
        listed = [parts for parts in forms if values_of(parts) is not None]
        strings = [p for p in forms if p not in listed and "string" in types_of(p)]
        if not held and any(not any(map(says_something, parts)) for parts in strings):
            return self._free
        values = [value for parts in listed for value in values_of(parts) or ()]
        _check_reading(values, found, held)
        jsons = [
            f"{json_value(parts, others, root)} {self._end}"
            for parts in forms
            if parts not in listed and (others := types_of(parts) - {"string", *WORDS})
        ]
        words = [_text(value) for value in values] + list(_words(forms, listed))
        if not strings:
            shown = [f"{quoted(word)} {self._end}" for word in words]
            return f"({' | '.join(dict.fromkeys([*shown, *jsons]))})"
        kinds = {"number" if kind in NUMBERS else kind for p in forms for kind in types_of(p)}
        texts = [self._strings.pattern(parts, sorted(kinds)) for parts in strings]
        texts += map(self._strings.literal, words)
        return f"({' | '.join([self._strings.of(texts), *jsons])})"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _words(forms: list[Parts], listed: list[Parts]) -> Iterator[str]:
    """Values of types that have few."""
    for parts in forms:
        for kind in sorted(types_of(parts) & WORDS.keys()) if parts not in listed else ():
            yield from WORDS[kind]


def _held(parts: Parts) -> Iterator[str]:
    """The types, strings aside, whose values are held to more than their type."""
    listed = values_of(parts)
    says_more = any(part.keys() - {"type"} for part in parts)
    for kind in types_of(parts) - {"string", "null"}:
        if listed is None and (not says_more or kind == "boolean"):
            continue
        if listed is not None and all(isinstance(value, str) for value in listed):
            continue
        yield "number" if kind in NUMBERS else kind


def _check_reading(values: list[Any], found: PropertySchema, held: frozenset[str]) -> None:
    """GrammarError if a text that stands for a string is read as a value that may not be."""
    for text in (value for value in values if isinstance(value, str)):
        value = json.loads(found.to_json(text))
        if isinstance(value, str) or any(same(value, one) for one in values):
            continue
        (kind,) = PropertySchema({"const": value}).types
        if ("number" if kind in NUMBERS else kind) in held:
            raise GrammarError(f"the string {text[:60]!r} would be read as {value!r:.60}")
