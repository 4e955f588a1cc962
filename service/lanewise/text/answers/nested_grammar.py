"""Rules of arguments in tags within tags, by their schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lanewise.text.answers.alternatives import (
    Parts,
    Root,
    alternatives,
    together,
    types_of,
    values_of,
)
from lanewise.text.answers.any_order import in_all_orders
from lanewise.text.answers.calls import Parameters, argument_schema
from lanewise.text.answers.grammar_values import in_slashes, text_rule
from lanewise.text.answers.objects import ObjectForm, object_form, object_forms
from lanewise.text.answers.rules import quoted, symbols, text_up_to
from lanewise.text.answers.text_values import TextValues
from lanewise.text.answers.values import TextGrammar
from lanewise.text.grammar import GrammarError, styled
from lanewise.text.tokenizer import Tokenizer

ITEM = "item"  # the tag of each item of an array
KEY = r'[^<>"\n\/][^<>"\n]*'
END_OF_NAME = f"/{KEY}>/"
MAX_DEEP = 8  # values within values that are held to their schema; deeper ones to none
MAX_RULES = 4000
MAX_ITEMS = 1000
NESTED = frozenset({"array", "object"})


class NestedRules:
    """Makes the rules of the functions of one grammar; ``mark`` stands before each tag."""

    def __init__(self, mark: str, tokenizer: Tokenizer) -> None:
        self._mark, self._tokenizer = mark, tokenizer
        self._values: dict[str | None, TextValues] = {}  # by the name of the tag that ends them
        self._texts: dict[str | None, str] = {}  # rules of any text, likewise
        self._count = 0
        self._own: list[str] = []
        self._is_token = isinstance(tokenizer.split_special(mark)[0], int)
        if not self._is_token:  # a text with a tag in it would hide the tag
            but = in_slashes(re.escape(mark))
            self._own.append(rf"UNMARKED: /(.|\n)*/ & ~/(.|\n)*{but}(.|\n)*/")
        self._own += [
            f"any_value: {self._free(None)} {END_OF_NAME} | any_tag+ {self._end(None)}",
            f"any_tag: {self._begin('')} any_value",
        ]

    @property
    def rules(self) -> list[str]:
        """All rules."""
        return self._own + [rule for values in self._values.values() for rule in values.rules]

    def of(self, parameters: Parameters) -> str:
        """The name of the rule of a function's arguments."""
        schema = argument_schema(parameters)
        styled(schema)  # what no grammar can enforce is an error in all of them
        forms = object_forms(schema, schema)
        return self._add(" | ".join(self._object(form, schema, 0) for form in forms))

    def _name(self) -> str:
        self._count += 1
        if self._count > MAX_RULES:
            raise GrammarError(f"arguments of more than {MAX_RULES} parts; accepted: fewer")
        return f"value_{self._count}"

    def _add(self, body: str) -> str:
        name = self._name()
        self._own.append(f"{name}: {body}")
        return name

    def _begin(self, but: str) -> str:
        """A tag of any name; ``but`` are names that it may not have, as a regular expression."""
        before = f"{symbols(self._mark, self._tokenizer)} " if self._is_token else ""
        mark = "" if self._is_token else in_slashes(re.escape(self._mark))
        self._count += 1
        name = f"TAG_{self._count}"
        self._own.append(
            f"{name}: /{mark}<{KEY}>/" + (f" & ~/{mark}<({in_slashes(but)})>/" if but else "")
        )
        return before + name

    def _end(self, key: str | None) -> str:
        """The tag that ends the value of a key; None: of one whose name is not known."""
        return symbols(self._end_text(key), self._tokenizer) + ("" if key else f" {END_OF_NAME}")

    def _end_text(self, key: str | None) -> str:
        return f"{self._mark}</{key}>" if key else f"{self._mark}</"

    def _object(self, form: ObjectForm, root: Root, depth: int) -> str:
        """Properties in any order if they are few, then others if there may be some."""
        last = self._others(form, root, depth)
        named = {}
        for key, schema in form.properties.items():
            if re.fullmatch(KEY, key) is None:
                raise GrammarError(f"the property {key[:40]!r} has a character that ends names")
            head = symbols(f"{self._mark}<{key}>", self._tokenizer)
            rule = self._add(f"{head} {self._value(schema, key, root, depth + 1)}")
            named[rule] = key in form.required
        name = self._name()
        free = in_all_orders(name, named, MAX_DEEP, last=last)
        if free:
            self._own += free
            return f"{name}_0"
        in_order = [one if needed else f"{one}?" for one, needed in named.items()]
        return self._add(" ".join([*in_order, last]))

    def _others(self, form: ObjectForm, root: Root, depth: int) -> str:
        """Properties that the schema does not name.

        A grammar cannot let a tag end with the name that it began with, unless it knows the name.
        """
        if form.patterns:
            raise GrammarError("patternProperties has no form here; accepted: properties")
        if form.other is False:
            return quoted("")
        begin = self._begin("|".join(map(re.escape, form.properties)))
        return f"({begin} {self._value(form.other, None, root, depth + 1)})*"

    def _value(self, schema: Any, key: str | None, root: Root, depth: int) -> str:
        """A value with the tag that ends it."""
        if depth > MAX_DEEP or _says_nothing(schema):
            return f"({self._free(key)} | any_tag+ {self._end(key)})" if key else "any_value"
        grammar = TextGrammar.of(schema)
        if grammar is not None:
            return f"{text_rule(grammar)} {self._end(key)}"
        forms = alternatives(schema, root)
        if not forms:
            raise GrammarError("nothing obeys the schema of a property")
        made = dict.fromkeys(one for parts in forms for one in self._tags(parts, key, root, depth))
        flat = [
            {"allOf": [*parts, {"type": sorted(types)}]}
            for parts in forms
            if (types := types_of(parts) - NESTED)
        ]
        if flat:
            text = self._flat(key).of({"anyOf": flat} if len(flat) > 1 else flat[0], root)
            made[text if key else f"{text} {END_OF_NAME}"] = None
        return self._add(" | ".join(made))

    def _flat(self, key: str | None) -> TextValues:
        """Makes the rules of values without tags, which end with that of a key."""
        if key not in self._values:
            free, prefix = self._free(key), f"text_{len(self._values)}"
            end = self._end_text(key)
            self._values[key] = TextValues(end, self._mark, free, self._tokenizer, prefix)
        return self._values[key]

    def _free(self, key: str | None) -> str:
        """The rule of any text and of its end, without the name if that is not known."""
        if key not in self._texts:
            self._texts[key] = f"free_{len(self._texts)}"
            text = "TEXT" if self._is_token else "UNMARKED"
            rule = text_up_to(self._texts[key], self._end_text(key), self._tokenizer, text)
            self._own.append(rule)
        return self._texts[key]

    def _tags(self, parts: Parts, key: str | None, root: Root, depth: int) -> Iterator[str]:
        """Objects and arrays."""
        values = values_of(parts)
        if values is not None:
            if any(isinstance(value, dict | list) for value in values):
                raise GrammarError("an object or array that is listed has no form here")
            return
        types = types_of(parts)
        if "object" in types:
            yield f"{self._object(object_form(parts), root, depth)} {self._end(key)}"
        if "array" in types:
            yield f"{self._items(parts, root, depth)} {self._end(key)}"

    def _items(self, parts: Parts, root: Root, depth: int) -> str:
        items = [part["items"] for part in parts if isinstance(part.get("items"), Mapping)]
        if any("prefixItems" in part or isinstance(part.get("items"), list) for part in parts):
            raise GrammarError("prefixItems has no form here; accepted: items")
        value = self._value(together(items) if items else True, ITEM, root, depth + 1)
        item = self._add(f"{symbols(f'{self._mark}<{ITEM}>', self._tokenizer)} {value}")
        least = max((part.get("minItems", 0) for part in parts), default=0)
        most = min((part["maxItems"] for part in parts if "maxItems" in part), default=None)
        if not isinstance(least, int) or least > MAX_ITEMS or (most is not None and most < least):
            raise GrammarError(f"no list that can be enforced has {least} items or more")
        if most is not None and most <= MAX_ITEMS:
            return f"{item}{{{least},{most}}}" if most else quoted("")
        return f"{item}{{{least},}}" if least else f"{item}*"


def _says_nothing(schema: Any) -> bool:
    return schema is True or schema == {}
