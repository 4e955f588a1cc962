"""Values that are written as text: which JSON value one is, by the schema of its property."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
MAX_REFERENCES = 20  # from one to the next; more go in a circle
MAX_COUNTED = 1000  # characters, in a rule of a grammar
# As Python writes them, which some templates show to models.
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
# Keywords that only values of one type can break.
KEYWORDS = {
    "properties": "object",
    "items": "array",
    "prefixItems": "array",
    "pattern": "string",
    "minLength": "string",
    "maxLength": "string",
    "minimum": "number",
    "maximum": "number",
}
# A string's schema may have one: {"syntax": "lark" | "regex", "definition": text}. It is no keyword
# of JSON schema, and templates do not get to see it.
GRAMMAR = "x-grammar"


class TextGrammar(NamedTuple):
    """What a string is held to."""

    syntax: str
    definition: str

    @classmethod
    def of(cls, schema: Any) -> TextGrammar | None:
        """The grammar in a string's schema, if there is one."""
        found = schema.get(GRAMMAR) if isinstance(schema, Mapping) else None
        if not isinstance(found, Mapping):
            return None
        syntax, definition = found.get("syntax"), found.get("definition")
        is_one = syntax in ("lark", "regex") and isinstance(definition, str)
        return cls(str(syntax), str(definition)) if is_one else None


class PropertySchema:
    """The schema of one property, as part of the schema of all arguments."""

    def __init__(self, schema: Any, root: Mapping[str, Any] | None = None) -> None:
        self._schema = schema
        self._root = root or {}
        self.types = self._types_of(schema, MAX_REFERENCES)
        self.grammar = TextGrammar.of(schema)

    @property
    def schema(self) -> Any:
        """The schema itself."""
        return self._schema

    @property
    def root(self) -> Mapping[str, Any]:
        """The schema that it is a part of."""
        return self._root

    @property
    def is_text(self) -> bool:
        """Whether any value is a string, so that text needs no reading."""
        return self.types == {"string"}

    @property
    def takes_text(self) -> bool:
        """Whether a value may be a string."""
        return "string" in self.types

    def lengths(self) -> tuple[int, int] | None:
        """How many characters a string has at least and at most, if that is few."""
        schema = self.resolved()
        if not self.is_text:
            return None
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if type(least) is int and type(most) is int and 0 <= least <= most <= MAX_COUNTED:
            return least, most
        return None

    def choices(self) -> list[Any] | None:
        """All values there may be, if they are listed."""
        schema = self.resolved()
        if "const" in schema:
            return [schema["const"]]
        found = schema.get("enum")
        return list(found) if isinstance(found, list) and found else None

    def resolved(self) -> Mapping[str, Any]:
        """The schema that a reference leads to; without keywords if there is none."""
        schema = self._resolved(self._schema, MAX_REFERENCES)
        return schema if isinstance(schema, Mapping) else {}

    def standalone(self) -> Any:
        """The schema with the definitions that it refers to."""
        if not isinstance(self._schema, Mapping):
            return self._schema
        shared = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        return {**shared, **self._schema}

    def to_json(self, text: str) -> str:
        """A value's JSON. Text that is no value of the schema is a string."""
        if not self.is_text:
            found = PYTHON_WORDS.get(text.strip(), text.strip())
            kind = _type_of(found)
            if kind in self.types or (kind == "integer" and "number" in self.types):
                return found
            if kind == "number" and "integer" in self.types and (whole := _whole(found)):
                return whole
        return quoted(text)

    def _types_of(self, schema: Any, most: int) -> frozenset[str]:
        schema = self._resolved(schema, most)
        if not isinstance(schema, Mapping) or most <= 0:
            return TYPES
        types = frozenset(self._own_types(schema)) & TYPES or TYPES
        for key in ("anyOf", "oneOf"):
            parts = schema.get(key)
            if isinstance(parts, list) and parts:
                kinds = (self._types_of(part, most - 1) for part in parts)
                types &= frozenset().union(*kinds)
        parts = schema.get("allOf")
        for part in parts if isinstance(parts, list) else ():
            types &= self._types_of(part, most - 1)
        return types or TYPES

    def _own_types(self, schema: Mapping[str, Any]) -> Iterator[str]:
        said = schema.get("type")
        if isinstance(said, str):
            yield said
        elif isinstance(said, list):
            yield from (kind for kind in said if isinstance(kind, str))
        elif "const" in schema:
            yield _kind(schema["const"])
        elif isinstance(schema.get("enum"), list):
            yield from map(_kind, schema["enum"])
        else:
            yield from (kind for key, kind in KEYWORDS.items() if key in schema)

    def _resolved(self, schema: Any, most: int) -> Any:
        while isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str) and most > 0:
            schema, most = _at(self._root, schema["$ref"]), most - 1
        return schema


def quoted(text: str) -> str:
    """A string's JSON."""
    return json.dumps(text, ensure_ascii=False)


def _at(root: Any, reference: str) -> Any:
    """What a reference within the same schema points to; anything, if nothing."""
    if not reference.startswith("#"):
        return True
    found = root
    for part in filter(None, reference[1:].split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return True if found is None else found


def _type_of(text: str) -> str | None:
    """The type of a text that is JSON; None if it is none."""
    try:
        return _kind(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


def _refuse(word: str) -> None:
    raise ValueError(word)  # NaN and infinities, which only Python takes for JSON


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")


def _whole(text: str) -> str | None:
    """A number such as 5.0 as the integer that it is."""
    number = float(text)
    return str(int(number)) if number.is_integer() else None
