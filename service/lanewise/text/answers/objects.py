"""Objects whose properties are written one by one: which there are, and what each may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lanewise.text.answers.alternatives import (
    Parts,
    Root,
    alternatives,
    members_of,
    required_of,
    together,
    types_of,
)
from lanewise.text.answers.calls import Parameters, argument_schema
from lanewise.text.answers.values import PropertySchema
from lanewise.text.grammar import GrammarError
from lanewise.text.json_schema import COERCED


class ObjectForm(NamedTuple):
    """One form of an object."""

    properties: Mapping[str, Any]  # schemas by name
    required: frozenset[str]
    patterns: Sequence[tuple[str, Any]]  # of names, and their schemas
    other: Any  # the schema of what is not named; False: there is nothing else

    @property
    def is_any(self) -> bool:
        """Whether any object has it."""
        return not self.properties and not self.patterns and self.other is True


def object_forms(schema: Mapping[str, Any], root: Root) -> list[ObjectForm]:
    """All forms of an object; GrammarError if they cannot be enforced."""
    found = [parts for parts in alternatives(schema, root) if "object" in types_of(parts)]
    if not found:
        raise GrammarError("no object obeys the schema")
    return [object_form(parts) for parts in found]


def object_form(parts: Parts) -> ObjectForm:
    """The form that obeys all of some schemas."""
    properties = {key: together(schemas) for key, schemas in members_of(parts).items()}
    required = frozenset(required_of(parts))
    others = [part["additionalProperties"] for part in parts if "additionalProperties" in part]
    patterns = [pair for part in parts for pair in _patterns_of(part)]
    schemas = [one for one in others if isinstance(one, Mapping) and one]
    other: Any = False if False in others else together(schemas) if schemas else True
    for key in sorted(required - properties.keys()):
        if other is False:
            raise GrammarError(f"required: there may be no property {key[:60]!r}")
        properties[key] = other
    for part in parts:
        _check_count(part, properties, required, is_open=bool(patterns) or other is not False)
    return ObjectForm(properties, required, patterns, other)


def _patterns_of(part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    found = part.get("patternProperties", {})
    if not isinstance(found, Mapping):
        raise GrammarError("patternProperties is an object")
    yield from found.items()


def _check_count(
    part: Mapping[str, Any],
    properties: Mapping[str, Any],
    required: frozenset[str],
    *,
    is_open: bool,
) -> None:
    least, most = part.get("minProperties", 0), part.get("maxProperties")
    if isinstance(least, int) and least > len(required):
        raise GrammarError("minProperties has no form here; accepted: required")
    if isinstance(most, int) and (is_open or most < len(properties)):
        raise GrammarError("maxProperties has no form here")


class Readers(NamedTuple):
    """What the values of a function's arguments are read by."""

    named: Mapping[str, PropertySchema]
    other: PropertySchema

    @classmethod
    def of_items(cls, schema: PropertySchema) -> PropertySchema:
        """What the items of an array are read by."""
        try:
            forms = [p for p in alternatives(schema.schema, schema.root) if "array" in types_of(p)]
        except GrammarError:
            forms = []
        found = [
            together([part["items"] for part in parts if isinstance(part.get("items"), Mapping)])
            if any(isinstance(part.get("items"), Mapping) for part in parts)
            else True
            for parts in forms
        ]
        return PropertySchema(_any_of(found or [True]), schema.root)

    @classmethod
    def of(cls, parameters: Parameters) -> Readers:
        """The readers of a function. If its schema is none, all values are of any type."""
        try:
            schema = {**argument_schema(parameters), "x-guidance": COERCED}
        except GrammarError:
            return cls({}, PropertySchema(True))
        return cls.of_schema(PropertySchema(schema, schema))

    @classmethod
    def of_schema(cls, schema: PropertySchema) -> Readers:
        """The readers of an object's properties. If none has the schema, they are of any type."""
        try:
            forms = object_forms(schema.schema, schema.root)
        except GrammarError:
            return cls({}, PropertySchema(True))
        schemas: dict[str, list[Any]] = {}
        others: list[Any] = []
        for form in forms:
            for key, one in form.properties.items():
                schemas.setdefault(key, []).append(one)
            others += [one for _, one in form.patterns]
            others += [] if form.other is False else [form.other]
        root = schema.root
        made = {key: PropertySchema(_any_of(some), root) for key, some in schemas.items()}
        return cls(made, PropertySchema(_any_of(others or [True]), root))

    def find(self, name: str) -> PropertySchema:
        """What a property is read by."""
        return self.named.get(name, self.other)


UNKNOWN = Readers({}, PropertySchema(True))  # of a function that is none of the tools


def _any_of(schemas: list[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
