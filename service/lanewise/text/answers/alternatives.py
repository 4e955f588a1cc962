"""What a value may be, by its schema: alternatives, each of several schemas that all hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import combinations, product
from typing import Any

from lanewise.text.answers.values import PropertySchema
from lanewise.text.grammar import GrammarError

Root = Mapping[str, Any]
Parts = tuple[Mapping[str, Any], ...]  # schemas without references and alternatives in them

MOST = 64  # alternatives of one value
MAX_DEEP = 20  # schemas within each other
MAX_STEPS = 2000  # schemas that one value has, those of references each time
BRANCHES = ("anyOf", "oneOf")
JOINTS = ("$ref", "allOf", *BRANCHES)
ABOUT = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly"})


def alternatives(schema: Any, root: Root) -> list[Parts]:
    """All there are; GrammarError if they are too many, or not to be told apart."""
    made: list[Parts] = []
    for parts in _Expansion(root).of(schema, MAX_DEEP):
        if parts not in made:
            made.append(parts)
    return made


class _Expansion:
    """Takes one schema apart in a bounded number of steps: parts may refer to each other."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._n_steps = 0

    def of(self, schema: Any, depth: int) -> list[Parts]:
        if schema is False:
            return []
        if not isinstance(schema, Mapping):
            return [()]
        self._n_steps += 1
        if depth <= 0 or self._n_steps > MAX_STEPS:
            raise GrammarError("a schema that goes on and on has no form here")
        own = {k: value for k, value in schema.items() if k not in JOINTS and k not in ABOUT}
        factors: list[list[Parts]] = [[(own,)] if own else [()]]
        if isinstance(schema.get("$ref"), str):
            found = PropertySchema({"$ref": schema["$ref"]}, self._root).resolved()
            factors.append(self.of(found, depth - 1))
        factors += (self.of(part, depth - 1) for part in _listed(schema, "allOf"))
        factors += (self._any_of(schema, key, depth) for key in BRANCHES if _listed(schema, key))
        _check_number(math.prod(map(len, factors)))
        made = (tuple(part for one in chosen for part in one) for chosen in product(*factors))
        return [parts for parts in made if types_of(parts)]

    def _any_of(self, schema: Mapping[str, Any], key: str, depth: int) -> list[Parts]:
        branches = [self.of(one, depth - 1) for one in _listed(schema, key)]
        made = [parts for one in branches for parts in one]
        _check_number(len(made))
        if key == "oneOf" and not _may_overlap(self._root):
            _check_apart(branches)
        return made


def _check_number(count: int) -> None:
    if count > MOST:
        raise GrammarError(f"{count} alternatives have no form here; accepted: at most {MOST}")


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _may_overlap(root: Root) -> bool:
    asked = root.get("x-guidance")
    return isinstance(asked, Mapping) and bool(asked.get("coerce_one_of"))


def _check_apart(branches: list[list[Parts]]) -> None:
    """GrammarError if a value could be of two branches of which it must be of one."""
    for some, others in combinations(branches, 2):
        for one, other in product(some, others):
            if not _are_apart(one, other):
                raise GrammarError("oneOf: two of them may hold at once; accepted: anyOf")


def _are_apart(one: Parts, other: Parts) -> bool:
    if not types_of(one) & types_of(other):
        return True
    values, others = values_of(one), values_of(other)
    if values is not None and others is not None:
        return not any(same(value, also) for value in values for also in others)
    return _tells(one, other) or _tells(other, one)


def _tells(one: Parts, other: Parts) -> bool:
    """Whether a property that both need has values that are different."""
    mine, theirs = members_of(one), members_of(other)
    for key in required_of(one) & required_of(other) & mine.keys() & theirs.keys():
        pair = [
            values_of(tuple(p for p in m[key] if isinstance(p, Mapping))) for m in (mine, theirs)
        ]
        if pair[0] is not None and pair[1] is not None:
            return not any(same(value, also) for value in pair[0] for also in pair[1])
    return False


def types_of(parts: Parts) -> frozenset[str]:
    """The types that a value may have; integers are numbers."""
    found = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
    for part in parts:
        own = PropertySchema(part).types
        found &= own | {"integer"} if "number" in own else own
    return found


def values_of(parts: Parts) -> list[Any] | None:
    """All values there may be, if they are listed."""
    lists = []
    for part in parts:
        if "const" in part:
            lists.append([part["const"]])
        elif isinstance(part.get("enum"), list):
            lists.append(part["enum"])
    if not lists:
        return None
    types = types_of(parts)
    first, *others = lists
    return [
        value
        for value in first
        if all(any(same(value, other) for other in one) for one in others)
        and PropertySchema({"const": value}).types <= types
    ]


def same(value: Any, other: Any) -> bool:
    """Whether two values are one of JSON; 1 is not true."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def members_of(parts: Parts) -> dict[str, list[Any]]:
    """The schemas of each named property of an object."""
    made: dict[str, list[Any]] = {}
    for part in parts:
        properties = part.get("properties", {})
        if not isinstance(properties, Mapping):
            raise GrammarError("properties is an object")
        for key, schema in properties.items():
            made.setdefault(key, []).append(schema)
    return made


def required_of(parts: Parts) -> set[str]:
    """The names of the properties that an object must have."""
    lists: Iterable[Any] = (part.get("required", ()) for part in parts)
    made: set[str] = set()
    for one in lists:
        if not isinstance(one, list | tuple):
            raise GrammarError("required is an array")
        made.update(name for name in one if isinstance(name, str))
    return made


def together(schemas: list[Any]) -> Any:
    """One schema of several that all hold."""
    return schemas[0] if len(schemas) == 1 else {"allOf": schemas}
