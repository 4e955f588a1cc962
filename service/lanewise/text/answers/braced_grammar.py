"""Rules of arguments in braces, by their schema: strings between tokens, keys without quotes."""

from __future__ import annotations

import json
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
from lanewise.text.answers.calls import Parameters, argument_schema
from lanewise.text.answers.grammar_values import in_slashes, text_rule
from lanewise.text.answers.json_values import json_value
from lanewise.text.answers.objects import ObjectForm, object_form, object_forms
from lanewise.text.answers.rules import quoted, symbols, text_up_to
from lanewise.text.answers.string_rules import StringRules, says_something, whole_pattern
from lanewise.text.answers.values import TextGrammar
from lanewise.text.exact_json import list_rule
from lanewise.text.grammar import GrammarError, styled
from lanewise.text.json_schema import NotEnforceableError
from lanewise.text.tokenizer import Tokenizer

KEY = r'[^\s<>{}\[\],:"|]+'
MAX_DEEP = 8  # values within values that are held to their schema; deeper ones to none
MAX_RULES = 4000
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
        own = [
            text_up_to("string_end", quote, tokenizer),
            *UNKNOWN.format(
                string=f"{self._begin} string_end",
                scalar=styled({"type": sorted(SCALARS)}),
                key=KEY,
            ).splitlines(),
        ]
        self._strings = StringRules("text", quote, quote, tokenizer)
        self._own: list[str] = own
        self._count = 0

    @property
    def rules(self) -> list[str]:
        """All rules."""
        return [*self._own, *self._strings.rules]

    def of(self, parameters: Parameters) -> str:
        """The name of the rule of a function's arguments."""
        schema = argument_schema(parameters)
        styled(schema)  # what no grammar can enforce is an error in all of them
        return self._add(" | ".join(self._objects(schema, schema, 0)))

    def _name(self, kind: str = "value") -> str:
        self._count += 1
        if self._count > MAX_RULES:
            raise GrammarError(f"arguments of more than {MAX_RULES} parts; accepted: fewer")
        return f"{kind}_{self._count}"

    def _add(self, body: str, kind: str = "value") -> str:
        name = self._name(kind)
        self._own.append(f"{name}: {body}")
        return name

    def _objects(self, schema: Mapping[str, Any], root: Root, depth: int) -> list[str]:
        return [self._object(form, root, depth) for form in object_forms(schema, root)]

    def _object(self, form: ObjectForm, root: Root, depth: int) -> str:
        """Properties sorted as the template sorts them, and further ones if there may be some."""
        for key in form.properties:
            if re.fullmatch(KEY, key) is None:
                raise GrammarError(f"the property {key[:40]!r} has a character that ends names")
        other = self._other_pair(form, root, depth)
        pairs = [
            (
                f"{quoted(f'{key}:')} {self._value(form.properties[key], root, depth + 1)}",
                key in form.required,
            )
            for key in sorted(form.properties, key=str.lower)
        ]
        first = self._add(f'("," {other})*' if other else '""')
        before = self._add(f'({other} ("," {other})*)?' if other else '""')
        for pair, needed in reversed(pairs):
            more, less = f'"," {pair} {first}', f"{pair} {first}"
            skip_more, skip_less = ("", "") if needed else (f" | {first}", f" | {before}")
            first, before = self._add(more + skip_more), self._add(less + skip_less)
        return self._add(f'"{{" {before} "}}"')

    def _other_pair(self, form: ObjectForm, root: Root, depth: int) -> str | None:
        """A property that the schema does not name, if there may be one."""
        others = [(f" & /{in_slashes(whole_pattern(one))}/", value) for one, value in form.patterns]
        if form.other is not False:
            others.append(("", form.other))
        taken = "|".join(map(re.escape, form.properties))
        but = f" & ~/{in_slashes(taken)}/" if taken else ""
        made = []
        for names, value in others:
            key = self._add(f"/{KEY}/{names}{but}", "KEY")
            made.append(f'{key} ":" {self._value(value, root, depth + 1)}')
        return self._add(" | ".join(made)) if made else None

    def _value(self, schema: Any, root: Root, depth: int) -> str:
        if depth > MAX_DEEP or schema is True or schema == {}:
            return "any_value"
        grammar = TextGrammar.of(schema)
        if grammar is not None:
            return self._add(f"{self._begin} {text_rule(grammar)} {self._begin}")
        forms = alternatives(schema, root)
        if not forms:
            raise GrammarError("nothing obeys the schema of a property")
        shown = dict.fromkeys(one for parts in forms for one in self._kinds(parts, root, depth))
        return self._add(" | ".join(shown))

    def _kinds(self, parts: Parts, root: Root, depth: int) -> Iterator[str]:
        values = values_of(parts)
        if values is not None:
            yield from map(self._shown, values)
            return
        types = types_of(parts)
        if "string" in types:
            text = "string_end"
            if any(map(says_something, parts)):
                text = self._strings.of([self._strings.pattern(parts)])
            yield f"{self._begin} {text}"
        if scalars := types & SCALARS:
            yield json_value(parts, scalars, root)
        if "object" in types:
            form = object_form(parts)
            yield "any_object" if form.is_any else self._object(form, root, depth)
        if "array" in types:
            yield self._list(parts, root, depth)

    def _list(self, parts: Parts, root: Root, depth: int) -> str:
        items = [part["items"] for part in parts if isinstance(part.get("items"), Mapping)]
        if any("prefixItems" in part or isinstance(part.get("items"), list) for part in parts):
            raise GrammarError("prefixItems has no form here; accepted: items")
        item = self._value(together(items), root, depth + 1) if items else "any_value"
        least = max((part.get("minItems", 0) for part in parts), default=0)
        most = min((part["maxItems"] for part in parts if "maxItems" in part), default=None)
        try:
            return list_rule(item, ",", least, most)
        except NotEnforceableError as error:
            raise GrammarError(str(error)) from None

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
