"""Grammars, schemas and templates that take as much as they are given, or recurse as deeply."""

import json
from typing import Any

# Each a? may or may not be there, and what follows must be counted: exponential work.
ENDLESS_REGEX = "a?" * 62_000 + "a" * 62_000

ENDLESS_TEMPLATES = {
    "power": "{{ 9**(9**8) }}",
    "power when used": "{{ (messages | length + 8) ** (9 ** 8) }}",
    "loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
}
LARGE_TEMPLATES = {
    "string": "{{ 'a' * 10**9 }}",
    "string when used": "{{ 'a' * (10**9 * messages | length) }}",
    "list": "{{ [messages] * 10**9 }}",
    "padding": "{{ '%999999999d' | format(1) }}",
    "doubling": "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
}
# All that is large here has no variables in it: what folds constants takes it while compiling.
CONSTANT_TEMPLATES = {
    "product": "{{ 'a' * 3 * 10**8 }}",
    "filter": "{{ 'x' | center(3 * 10**8) }}",
    "format": "{{ '%*d' % (3 * 10**8, 1) }}",
    "json": "{{ [1] | tojson(indent=3 * 10**8) }}",
    "joined": "{{ 'a' ~ 'b' * 3 * 10**8 }}",
    "argument": "{{ 'a' | replace('a', 'b' * 3 * 10**8) }}",
    "set": "{% set x = 'a' * 3 * 10**8 %}{{ x }}",
    "default of a macro": "{% macro f(x='a' * 3 * 10**8) %}{{ x }}{% endmacro %}{{ f() }}",
    "loop": "{% for x in ['a' * 3 * 10**8] %}{{ x }}{% endfor %}",
    "condition": "{{ 1 if 'a' * 3 * 10**8 else 2 }}",
    "name of a file": "{% include 'a' * 3 * 10**8 %}",
}
LONG_TEMPLATE = "{% for i in range(90000) %}abcdefghijklmnopqrstuvwxyz{% endfor %}"
RECURSIVE_TEMPLATES = {
    "macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macros": "{% macro f() %}{{ g() }}{% endmacro %}"
    "{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
    "brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "blocks": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
}


def chained_schema(links: int) -> dict[str, Any]:
    """A schema whose definitions each refer to the next."""
    definitions: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(links)}
    definitions[f"d{links}"] = {"type": "string"}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def chained_lark(links: int) -> str:
    """A grammar whose rules each name the next."""
    rules = [f"r{i}: r{i + 1}" for i in range(links)]
    return "\n".join(["start: r0", *rules, f'r{links}: "a"'])


def chained_gbnf(links: int) -> str:
    """The same in llama.cpp's notation."""
    rules = [f"r{i} ::= r{i + 1}" for i in range(links)]
    return "\n".join(["root ::= r0", *rules, f'r{links} ::= "a"'])


NESTINGS: dict[str, tuple[str, str]] = {
    "properties": ('{"properties":{"a":', "}}"),
    "patternProperties": ('{"patternProperties":{"a":', "}}"),
    "additionalProperties": ('{"additionalProperties":', "}"),
    "items": ('{"items":', "}"),
    "prefixItems": ('{"prefixItems":[', "]}"),
    "anyOf": ('{"anyOf":[', "]}"),
    "allOf": ('{"allOf":[', "]}"),
    "oneOf": ('{"oneOf":[', "]}"),
    "not": ('{"not":', "}"),
    "if": ('{"if":', "}"),
    "$defs": ('{"$defs":{"a":', "}}"),
    "const": ('{"const":[', "]}"),
    "enum": ('{"enum":[', "]}"),
    "default": ('{"default":', "}"),
    "x-guidance": ('{"x-guidance":', "}"),
}


def nested_schema(keyword: str, levels: int) -> str:
    """A schema as text, nested through one keyword."""
    begin, end = NESTINGS[keyword]
    return begin * levels + '{"type":"string"}' + end * levels


def _references(**keyword: Any) -> dict[str, Any]:
    definitions = {
        f"d{i}": {name: [{"$ref": f"#/$defs/d{i + 1}"}] * 10 for name in keyword} for i in range(20)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, "d20": {"type": "string"}}}


BIG = 10**9
SCHEMAS: dict[str, Any] = {
    "minItems": {"type": "array", "items": {"type": "integer"}, "minItems": BIG},
    "maxItems": {"type": "array", "items": {"type": "integer"}, "maxItems": BIG},
    "minLength": {"type": "string", "minLength": BIG},
    "maxLength": {"type": "string", "maxLength": BIG},
    "uniqueItems": {"type": "array", "uniqueItems": True, "maxItems": BIG},
    "multipleOf": {"type": "integer", "multipleOf": BIG + 7},
    "multipleOf tiny": {"type": "number", "multipleOf": 1e-300},
    "limits": {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
    "enum": {"enum": [f"value {i}" for i in range(15_000)]},
    "properties": {"type": "object", "properties": {f"p{i}": {} for i in range(3000)}},
    "anyOf": {"anyOf": [{"type": "string", "pattern": f"^a{{{i}}}b*$"} for i in range(1000)]},
    "allOf": {"allOf": [{"type": "string", "pattern": f"^.*a{{{i}}}.*$"} for i in range(300)]},
    "pattern": {"type": "string", "pattern": "^(a?){5000}a{5000}$"},
    "patterns": {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"},
    "style": {"type": "object", "x-guidance": {"whitespace_pattern": "(a?){5000}a{5000}"}},
    "itself": {"$ref": "#"},
    "each other": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "ten anyOf ten": _references(anyOf=10),
    "ten allOf ten": _references(allOf=10),
    "ten items ten": _references(prefixItems=10),
    "product": {
        "allOf": [
            {"anyOf": [{"properties": {f"a{j}_{i}": {}}} for i in range(10)]} for j in range(8)
        ]
    },
}
GRAMMARS = {
    "repeated": 'start: ("a"{1000}){1000}',
    "ambiguous": 'start: s\ns: s s | "a" | s s s | ',
    "alternatives": "start: " + " | ".join(f'"v{i}"' for i in range(15_000)),
    "regex": "start: X\nX: /" + "a?" * 20_000 + "a" * 20_000 + "/",
    "gbnf": "root ::= " + '"a" | ' * 3000 + '"a"',
    "gbnf brackets": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000,
}


def bytes_of(value: Any) -> int:
    """Length of a value as JSON."""
    return len(json.dumps(value))
