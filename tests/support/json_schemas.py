"""JSON schemas made at random from every keyword that grammars support, bounded in size."""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
NAMES = ("id", "name", "size", "tags", "when", "a b", "ü", 'q"t', "$x")


def random_schema(seed: int) -> Schema:
    """A schema whose instances have at most about 100 tokens."""
    rng = random.Random(seed)
    schema = _object(rng, 2) if rng.random() < 0.7 else _any(rng, 2)
    if schema.get("properties") and rng.random() < 0.3:
        first = next(iter(schema["properties"]))
        schema["properties"][first] = {"$ref": "#/$defs/part"}
        schema["$defs"] = {"part": _any(rng, 0)}
    return schema


def _any(rng: random.Random, depth: int) -> Schema:
    kinds = [*SCALARS, *(NESTED if depth else ())]
    return rng.choice(kinds)(rng, depth)


def _string(rng: random.Random, _: int) -> Schema:
    most = rng.randint(0, 9)
    return {"type": "string", "minLength": rng.randint(0, most), "maxLength": most}


def _pattern(rng: random.Random, _: int) -> Schema:
    patterns = (
        r"^[a-z]{2,6}$",
        r"^(red|green)-[0-9]{1,3}$",
        r"^\d{3}\.\d$",
        r"^x\"y?$",
        r"^é+b{3}$",
    )
    return {"type": "string", "pattern": rng.choice(patterns), "maxLength": 20}


def _format(rng: random.Random, _: int) -> Schema:
    return {"type": "string", "format": rng.choice(("uuid", "ipv4", "date", "time", "date-time"))}


def _integer(rng: random.Random, _: int) -> Schema:
    low = rng.randint(-5000, 100)
    keys = rng.choice((("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")))
    schema = {"type": "integer", keys[0]: low, keys[1]: low + rng.randint(50, 9000)}
    return schema | ({"multipleOf": rng.choice((2, 5, 7))} if rng.random() < 0.3 else {})


def _number(rng: random.Random, _: int) -> Schema:
    low = rng.randint(-50, 50) / 4
    # Digits after the point have no other bound than this.
    return {"type": "number", "minimum": low, "maximum": low + 3, "multipleOf": 0.25}


def _simple(rng: random.Random, _: int) -> Schema:
    options = ({"type": "boolean"}, {"type": "null"}, {"type": ["null", "boolean"]}, {"const": "c"})
    return dict(rng.choice(options))


def _enum(rng: random.Random, _: int) -> Schema:
    values = ["red", "a b", 'qu"ote', "line\n", 1, 2.5, None, True, [1, "x"], {"k": 1}, "é", ""]
    return {"enum": rng.sample(values, rng.randint(1, 5))}


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    schema = {"type": "array", "items": _any(rng, depth - 1), "minItems": least}
    if rng.random() < 0.25:
        schema["prefixItems"] = [_any(rng, 0), _any(rng, 0)]
    return schema | {"maxItems": least + rng.randint(0, 2)}


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(NAMES, rng.randint(0, 3))
    schema: Schema = {"type": "object", "properties": {n: _any(rng, depth - 1) for n in names}}
    schema["required"] = [name for name in names if rng.random() < 0.6]
    more = rng.random()
    if more < 0.7:
        schema["additionalProperties"] = False
    elif more < 0.85:
        schema["patternProperties"] = {"^p[0-9]$": _any(rng, 0)}
        schema |= {"additionalProperties": False}
    else:
        schema["additionalProperties"] = _simple(rng, 0)
    if more >= 0.7:  # how many there are is only counted when none may be left out
        schema |= {"required": names, "maxProperties": len(names) + 1}
    return schema


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(rng, depth - 1) for _ in range(rng.randint(1, 3))]}


def _one_of(rng: random.Random, _: int) -> Schema:
    return {"oneOf": [_string(rng, 0), _integer(rng, 0), {"type": "null"}]}


def _all_of(rng: random.Random, _: int) -> Schema:
    return {"allOf": [{"type": "string", "maxLength": rng.randint(3, 6)}, {"minLength": 2}]}


Make = Callable[[random.Random, int], Schema]
SCALARS: tuple[Make, ...] = (_string, _pattern, _format, _integer, _number, _simple, _enum, _all_of)
NESTED: tuple[Make, ...] = (_array, _object, _any_of, _one_of)

# Each has a keyword that grammars cannot express.
UNSUPPORTED: tuple[Schema, ...] = (
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    {"not": {"type": "string"}},
    {"if": {"type": "string"}, "then": {"maxLength": 3}},
    {"type": "array", "contains": {"type": "string"}},
    {"type": "object", "propertyNames": {"pattern": "^a"}},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"type": "object", "unevaluatedProperties": False},
    {"const": 962148.5201964919},
    {"type": "string", "pattern": "(?=a)b"},
    {"$ref": "#/$defs/nowhere"},
    {"$ref": "https://example.com/schema.json"},
    {"type": "integer", "minimum": 5, "maximum": 3},
)
