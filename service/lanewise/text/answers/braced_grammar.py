"""Rules of arguments in braces, by their schema: strings between tokens, keys without quotes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from lanewise.text.answers.calls import Parameters, argument_schema
from lanewise.text.answers.grammar_values import text_rule
from lanewise.text.answers.rules import quoted, symbols, text_up_to
from lanewise.text.answers.values import PropertySchema
from lanewise.text.grammar import GrammarError, styled
from lanewise.text.tokenizer import Tokenizer

KEY = r'[^\s<>{}\[\],:"|]+'
MOST_DEEP = 8  # values within values that are held to their schema; deeper ones to none
MOST_ITEMS = 1000  # of a list, in a rule
SCALARS = frozenset({"null", "boolean", "integer", "number"})
UNKNOWN = """any_value: {string} | %json {scalar} | any_object | any_list
any_object: "{{" (any_pair ("," any_pair)*)? "}}"
any_pair: /{key}/ ":" any_value
any_list: "[" (any_value ("," any_value)*)? "]"
"""


class ArgumentRules:
    """Makes the rules of the functions of one grammar."""

    def __init__(self, quote: str, tokenizer: Tokenizer) -> None:
        self._quote = quote
        self._tokenizer = tokenizer
        self._begin = symbols(quote, tokenizer)
        self.rules = [
            text_up_to("string_end", quote, tokenizer),
            *UNKNOWN.format(
                string=f"{self._begin} string_end",
                scalar=styled({"type": sorted(SCALARS)}),
                key=KEY,
            ).splitlines(),
        ]
        self._count = 0

    def of(self, parameters: Parameters) -> str:
        """The name of the rule of a function's arguments."""
        schema = argument_schema(parameters)
        return self._object(schema, schema, 0)

    def _name(self, kind: str = "value") -> str:
        self._count += 1
        return f"{kind}_{self._count}"

    def _add(self, body: str, kind: str = "value") -> str:
        name = self._name(kind)
        self.rules.append(f"{name}: {body}")
        return name

    def _object(self, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
        """Properties sorted as the template sorts them, and further ones if there may be some."""
        properties, required = schema.get("properties", {}), schema.get("required", ())
        if not isinstance(properties, Mapping) or not isinstance(required, list | tuple):
            raise GrammarError("properties is an object and required an array")
        for key in properties:
            if re.fullmatch(KEY, key) is None:
                raise GrammarError(f"the property {key[:40]!r} has a character that ends names")
        other = self._other_pair(schema, root, depth)
        pairs = [
            (
                f"{quoted(f'{key}:')} {self._value(properties[key], root, depth + 1)}",
                key in required,
            )
            for key in sorted(properties, key=str.lower)
        ]
        first = self._add(f'("," {other})*' if other else '""')
        before = self._add(f'({other} ("," {other})*)?' if other else '""')
        for pair, needed in reversed(pairs):
            more, less = f'"," {pair} {first}', f"{pair} {first}"
            skip_more, skip_less = ("", "") if needed else (f" | {first}", f" | {before}")
            first, before = self._add(more + skip_more), self._add(less + skip_less)
        return self._add(f'"{{" {before} "}}"')

    def _other_pair(
        self, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int
    ) -> str | None:
        """A property that the schema does not name, if there may be one."""
        value = schema.get("additionalProperties", True)
        if value is False:
            return None
        shown = "any_value"
        if isinstance(value, Mapping) and value and depth < MOST_DEEP:
            shown = self._value(value, root, depth + 1)
        names = "|".join(map(re.escape, schema.get("properties", {})))
        key = self._add(f"/{KEY}/" + (f" & ~/{names}/" if names else ""), "KEY")
        return self._add(f'{key} ":" {shown}')

    def _value(self, schema: Any, root: Mapping[str, Any], depth: int) -> str:
        found = PropertySchema(schema, root)
        choices = found.choices()
        if choices is not None:
            return self._add(" | ".join(self._shown(one) for one in choices))
        return self._add(" | ".join(self._kinds(found, root, depth)))

    def _kinds(self, found: PropertySchema, root: Mapping[str, Any], depth: int) -> Iterator[str]:
        if found.types <= SCALARS:
            yield f"%json {styled(found.standalone())}"
            return
        schema = found.resolved()
        if "string" in found.types:
            yield self._string(found)
        if scalars := found.types & SCALARS:
            yield f"%json {styled({'type': sorted(scalars)})}"
        if "object" in found.types:
            named = {"properties", "additionalProperties"} & schema.keys() and depth < MOST_DEEP
            yield self._object(schema, root, depth) if named else "any_object"
        if "array" in found.types:
            yield self._list(schema, root, depth)

    def _string(self, found: PropertySchema) -> str:
        if found.grammar is not None:
            return f"{self._begin} {text_rule(found.grammar)} {self._begin}"
        lengths = found.lengths()
        if lengths is None:
            return f"{self._begin} string_end"
        name = self._name()
        text = f"/(.|\\n){{{lengths[0]},{lengths[1]}}}/"
        self.rules.append(text_up_to(name, self._quote, self._tokenizer, text))
        return f"{self._begin} {name}"

    def _list(self, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
        items = schema.get("items", True)
        item = "any_value"
        if isinstance(items, Mapping) and items and depth < MOST_DEEP:
            item = self._value(items, root, depth + 1)
        least, most = schema.get("minItems", 0), schema.get("maxItems", MOST_ITEMS)
        counted = type(least) is int and type(most) is int and 0 <= least <= most <= MOST_ITEMS
        if most == 0 and counted:
            return '"[]"'
        if not counted or (least, most) == (0, MOST_ITEMS):
            return f'"[" ({item} ("," {item})*)? "]"'
        some = f'{item} ("," {item}){{{max(least, 1) - 1},{most - 1}}}'
        return f'"[" {some} "]"' if least else f'"[" ({some})? "]"'

    def _shown(self, value: Any) -> str:
        """One value as it is written, strings between tokens."""
        if isinstance(value, str):
            return f"{self._begin} {quoted(value)} {self._begin}"
        if isinstance(value, dict):
            pairs = ' "," '.join(
                f"{quoted(f'{key}:')} {self._shown(one)}" for key, one in value.items()
            )
            return f'"{{" {pairs} "}}"'
        if isinstance(value, list):
            items = ' "," '.join(map(self._shown, value))
            return f'"[" {items} "]"'
        return quoted(json.dumps(value))
