"""JSON schemas with integers that no double is: the library reads numbers as doubles.

What leads to such a number is written as rules, in which it has its digits; all else is a schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lanewise.text.json_schema import NotEnforceableError

EXACT_INTEGERS = 2**53  # from here on a double is not every integer
MAX_DEEP = 16
MAX_ITEMS = 1000  # of a list, in a rule
KEPT = ("$defs", "definitions", "x-guidance")
SAYS_NOTHING = {"title", "description", "default", "examples", "type", *KEPT}


def json_rule(schema: str) -> str:
    """What stands in a rule for JSON that obeys a schema, which is ready for the library.

    NotEnforceableError if an integer is where no rule reaches.
    """
    root = json.loads(schema)
    if not has_large(root):
        return f"%json {schema}"
    rules = _Rules(root)
    start = rules.value(root, 0)
    return "%lark {\n" + "\n".join([f"start: {start}", *rules.lines]) + "\n}"


def has_large(value: Any) -> bool:
    """Whether a value of JSON has an integer in it that no double is; bounds are none of these."""
    if isinstance(value, int):
        return abs(value) > EXACT_INTEGERS and not _is_double(value)
    if isinstance(value, Mapping):
        parts = (
            part for key, part in value.items() if key not in BOUNDS or isinstance(part, Mapping)
        )
        return any(map(has_large, parts))
    return isinstance(value, list) and any(map(has_large, value))


BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "default", "examples"}


def _is_double(number: int) -> bool:
    return abs(number) < 2**63 and int(float(number)) == number


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _constant(value: Any) -> str:
    return _quoted(json.dumps(value, ensure_ascii=False))


class _Rules:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._shared = {key: root[key] for key in KEPT if key in root}
        self.lines: list[str] = []

    def value(self, schema: Any, depth: int) -> str:
        """The name of a rule, or what stands for it."""
        schema = self._resolved(schema)
        if depth > MAX_DEEP:
            raise NotEnforceableError("an integer above 2^53 is nested too deeply to be enforced")
        own = {key: one for key, one in schema.items() if key not in KEPT}
        if not has_large(own) and not ("$ref" in json.dumps(own) and has_large(self._shared)):
            return f"%json {json.dumps({**schema, **self._shared}, ensure_ascii=False)}"
        return self._add(self._body(own, depth))

    def _resolved(self, schema: Any) -> Mapping[str, Any]:
        for _ in range(MAX_DEEP):
            if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
                break
            found: Any = self._root
            for part in filter(None, schema["$ref"].removeprefix("#").split("/")):
                key = part.replace("~1", "/").replace("~0", "~")
                found = found.get(key) if isinstance(found, Mapping) else None
            schema = found
        return schema if isinstance(schema, Mapping) else {}

    def _add(self, body: str) -> str:
        name = f"exact_{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name

    def _body(self, schema: Mapping[str, Any], depth: int) -> str:
        said = schema.keys() - SAYS_NOTHING
        if said == {"const"}:
            return _constant(schema["const"])
        if said == {"enum"}:
            return " | ".join(map(_constant, schema["enum"]))
        if len(said) == 1 and said <= {"anyOf", "oneOf"}:
            return " | ".join(self.value(one, depth + 1) for one in schema[min(said)])
        if said == {"allOf"} and len(schema["allOf"]) == 1:
            return self.value(schema["allOf"][0], depth + 1)
        has_others = isinstance(schema.get("additionalProperties"), Mapping)
        if said <= {"properties", "required", "additionalProperties"} and not has_others:
            return self._object(schema, depth)
        if said <= {"items", "minItems", "maxItems"} and isinstance(schema.get("items"), Mapping):
            return self._list(schema, depth)
        raise NotEnforceableError(
            f"integers above 2^53 cannot be enforced beside {', '.join(sorted(said))}"
        )

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        """Properties in their order, of which some may be left out."""
        required = schema.get("required", ())
        first = behind = '""'
        for key, one in reversed(schema.get("properties", {}).items()):
            begin = _quoted(json.dumps(key, ensure_ascii=False) + ": ")
            pair = f"{begin} {self.value(one, depth + 1)}"
            skip, skip_behind = ("", "") if key in required else (f" | {first}", f" | {behind}")
            first, behind = (
                self._add(f"{pair} {behind}{skip}"),
                self._add(f'", " {pair} {behind}{skip_behind}'),
            )
        return f'"{{" {first} "}}"'

    def _list(self, schema: Mapping[str, Any], depth: int) -> str:
        item = self.value(schema["items"], depth + 1)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        return list_rule(item, ", ", least, most)


def list_rule(item: str, comma: str, least: Any, most: Any) -> str:
    """A list in brackets, of some number of items."""
    least = least if type(least) is int and 0 < least <= MAX_ITEMS else 0
    most = most if type(most) is int and 0 <= most <= MAX_ITEMS else None
    if most is not None and most < least:
        raise NotEnforceableError(f"no list has at least {least} items and at most {most}")
    if most == 0:
        return '"[]"'
    more = f"({_quoted(comma)} {item})"
    if most == 1:
        some = item
    elif most is None and least <= 1:
        some = f"{item} {more}*"
    else:
        some = f"{item} {more}{{{max(least, 1) - 1},{'' if most is None else most - 1}}}"
    return f'"[" {some} "]"' if least else f'"[" ({some})? "]"'
