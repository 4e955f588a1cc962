"""Schemas of tools as pydantic, zod, MCP servers and Go's structs have them."""

import random
from typing import Any

Schema = dict[str, Any]
COLOURS = ["red", "green", "dark blue"]
SNOWFLAKE = 1234567890123456789


def _pydantic(rng: random.Random) -> Schema:
    return rng.choice(
        (
            {"anyOf": [{"enum": COLOURS, "type": "string"}, {"type": "null"}], "default": None},
            {"anyOf": [{"const": "on", "type": "string"}, {"type": "null"}], "title": "State"},
            {"anyOf": [{"type": "string", "pattern": "^[a-z]{2,4}$"}, {"type": "null"}]},
            {"type": "string", "pattern": r"^\d{3}-[A-Z]+/?$", "maxLength": 9},
            {"type": "string", "pattern": "ab|c$", "maxLength": 6},
            {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
            {"allOf": [{"$ref": "#/$defs/Mode"}], "default": "slow"},
            {"$ref": "#/$defs/Mode"},
            {"$ref": "#/$defs/Place"},
            {"type": "array", "items": {"$ref": "#/$defs/Mode"}, "maxItems": 2},
            {"type": "object", "additionalProperties": {"type": "integer", "maximum": 99}},
            {"format": "date", "type": "string", "title": "Day"},
            {"anyOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]},
        )
    )


def _zod(rng: random.Random) -> Schema:
    limit = 2**53 - 1
    return rng.choice(
        (
            {"type": "string", "minLength": 1, "maxLength": 5},
            {"type": "string", "format": "email"},
            {"type": "string", "format": "date-time"},
            {"type": "integer", "exclusiveMinimum": 0, "maximum": limit},
            {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "number", "maximum": 5}]},
            {"oneOf": [{"type": "string", "const": "a"}, {"type": "boolean"}]},
            {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 1},
            {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"kind": {"const": kind}, "n": {"type": "integer"}},
                        "required": ["kind", "n"],
                        "additionalProperties": False,
                    }
                    for kind in ("one", "two")
                ]
            },
        )
    )


def _mcp(rng: random.Random) -> Schema:
    return rng.choice(
        (
            {"type": "string", "description": "Any words."},
            {"type": ["string", "null"], "enum": ["up", "down", None]},
            {"enum": [SNOWFLAKE, SNOWFLAKE + 2, "none"]},
            {"type": "integer", "enum": [SNOWFLAKE, 7]},
            {"const": SNOWFLAKE},
            {"type": ["integer", "string"], "description": "A number or a name."},
            {"type": "boolean", "default": False},
            {"type": "string", "not": {"const": "x"}},
        )
    )


def _go(rng: random.Random) -> Schema:
    return rng.choice(
        (
            {"type": ["array", "null"], "items": {"type": "string", "maxLength": 2}, "maxItems": 2},
            {"type": "object", "properties": {"x": {"type": "integer"}}, "required": None},
            {"type": "string", "enum": ["a", "b"], "default": None, "description": None},
            {"type": "integer", "minimum": 1, "maximum": 64, "format": "int64"},
            {"type": "any"},
        )
    )


LIBRARIES = {"pydantic": _pydantic, "zod": _zod, "mcp": _mcp, "go": _go}
DEFINITIONS = {
    "Mode": {"enum": ["slow", "fast"], "type": "string", "title": "Mode"},
    "Place": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 4},
            "level": {"anyOf": [{"type": "integer", "maximum": 3}, {"type": "null"}]},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
}


def tool_schema(seed: int) -> Schema:
    """The schema of a tool's arguments."""
    rng = random.Random(seed)
    name = rng.choice(list(LIBRARIES))
    names = rng.sample(["id", "path", "mode", "when", "who"], rng.randint(1, 3))
    schema: Schema = {"type": "object"}
    schema["properties"] = {key: LIBRARIES[name](rng) for key in names}
    schema["required"] = [key for key in names if rng.random() < 0.6]
    if name == "pydantic":
        schema["$defs"] = DEFINITIONS
    if name in ("zod", "mcp") and rng.random() < 0.7:
        schema["additionalProperties"] = False
    if name == "go" and not schema["required"]:
        schema["required"] = None
    return schema
