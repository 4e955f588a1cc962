"""JSON schemas as the library of grammars takes them: what it would refuse or misread is rewritten.

Annotations are no constraints, numbers mean what they say, and what cannot be enforced is either an
error or, where the request does not insist, left out and told.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any


class NotEnforceableError(Exception):
    """A keyword cannot be enforced; the message names it and where it is."""


# Formats of strings that grammars know, and the characters that a text of each has at most: some
# could go on for ever. Any other format is an annotation, which any string obeys.
FORMATS = {
    "date-time": 48,
    "time": 32,
    "date": 10,
    "duration": 64,
    "email": 254,
    "hostname": 253,
    "ipv4": 15,
    "ipv6": 45,
    "uuid": 36,
    "uri": 2048,
}
# Keywords that no grammar expresses, unless they have a value that says nothing.
UNENFORCEABLE: dict[str, tuple[Any, ...]] = {
    "not": (False,),
    "if": (),
    "then": (),
    "else": (),
    "contains": (True, {}),
    "minContains": (),
    "maxContains": (),
    "uniqueItems": (False,),
    "propertyNames": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "$dynamicAnchor": (),
    "$dynamicRef": (),
    "$recursiveRef": (),
}
# Where a schema has schemas: alone, in a list, or by name.
ONE = ("items", "additionalProperties", "additionalItems")
LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
NAMED = ("properties", "patternProperties", "$defs", "definitions")
MAY_BE_NULL = ("const", "default", "example")
# What JSON calls its types; what values of other keywords must be, where an odd one says nothing.
TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), (Mapping,)),
    **dict.fromkeys(("required", "enum", "allOf", "anyOf", "oneOf", "prefixItems"), (list,)),
    **dict.fromkeys(("pattern", "$ref"), (str,)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), (int,)),
    **dict.fromkeys(("minProperties", "maxProperties"), (int,)),
    **dict.fromkeys(("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"), (int, float)),
    "multipleOf": (int, float),
    "additionalProperties": (bool, Mapping),
    "items": (bool, Mapping, list),
}
NOT_EMPTY = ("enum", "allOf", "anyOf", "oneOf")
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")

EXACT_INTEGERS = 2**53  # from here on a double is not every integer
MAX_INTEGER = 2**63  # of the library's integers, which it must stay below
MAX_BOUND = MAX_INTEGER - 1024  # of a range: the last double that the library has an integer for
# What regular expressions that always end cannot have: look-around, references to a group.
BEYOND_REGEX = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?(?:=|!|<=|<!)|\\[1-9]|\\k<)")
MAX_OPEN_BOUND = 10**17  # of a range without an end
MAX_SHOWN = 60  # characters of a value in a message

Report = Callable[[str, str], None]

# One of several that the library cannot tell apart becomes any of them.
COERCED = {"coerce_one_of": True}


def enforceable(schema: Any) -> Any:
    """A schema that the library takes for what it is.

    NotEnforceableError if there is none, ``nested`` as deep as the interpreter goes at most.
    """

    def refuse(path: str, problem: str) -> None:
        raise NotEnforceableError(f"{path}: {problem}" if path else problem)

    return _rewritten(schema, "", refuse)


def relaxed(schema: Any) -> tuple[Any, list[str]]:
    """A schema without what cannot be enforced, and what that was."""
    left_out: list[str] = []

    def note(path: str, problem: str) -> None:
        left_out.append(f"{path}: {problem}" if path else problem)

    made = _rewritten(schema, "", note)
    if isinstance(made, dict):
        asked = made.get("x-guidance")
        made["x-guidance"] = {**COERCED, **(asked if isinstance(asked, Mapping) else {})}
    return made, left_out


def without_nulls(schema: Any) -> Any:
    """A schema without keywords whose value is null, which say nothing; a default may be null."""
    if schema is None:
        return True
    if not isinstance(schema, Mapping):
        return schema
    made = {key: value for key, value in schema.items() if value is not None or key in MAY_BE_NULL}
    for key, _, part in list(_parts(made, "")):
        if isinstance(part, Mapping) and key in NAMED:
            made[key] = {name: without_nulls(one) for name, one in part.items()}
        elif isinstance(part, list):
            made[key] = [without_nulls(one) for one in part]
        else:
            made[key] = without_nulls(part)
    return made


def _rewritten(schema: Any, path: str, report: Report) -> Any:
    """The schema without what was reported."""
    if not isinstance(schema, Mapping):
        return schema
    made = without_nulls(schema)
    _drop_odd(made, path, report)
    _drop_keywords(made, path, report)
    _rewrite_string(made, path, report)
    _rewrite_numbers(made, path, report)
    for key, at, part in list(_parts(made, path)):
        if isinstance(part, Mapping) and key in NAMED:
            made[key] = {k: _rewritten(v, f"{at}.{k}", report) for k, v in part.items()}
        elif isinstance(part, list):
            made[key] = [_rewritten(v, f"{at}[{i}]", report) for i, v in enumerate(part)]
        else:
            made[key] = _rewritten(part, at, report)
    return made


def _parts(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, Any]]:
    """Each keyword whose value is or has schemas, where it is, and its value."""
    for kind, keys in ((Mapping, ONE), (list, LISTED), (Mapping, NAMED)):
        for key in keys:
            part = schema.get(key)
            if isinstance(part, kind):
                yield key, f"{path}.{key}" if path else key, part


def _drop_odd(schema: dict[str, Any], path: str, report: Report) -> None:
    """Without keywords whose values mean nothing, as types that JSON has not."""
    said = schema.get("type")
    named = said if isinstance(said, list) and said else [said]
    if "type" in schema and not all(isinstance(one, str) and one in TYPES for one in named):
        report(path, f"the type {_shown(said)} cannot be enforced; JSON has none of that name")
        del schema["type"]
    for inclusive, exclusive in (LOWER, UPPER):
        # Draft 4 had a truth value there, beside the bound that it was about.
        if isinstance(schema.get(exclusive), bool):
            is_exclusive = schema.pop(exclusive)
            if is_exclusive and inclusive in schema:
                schema[exclusive] = schema.pop(inclusive)
    for key, kinds in KINDS.items():
        if key not in schema:
            continue
        value = schema[key]
        is_odd = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
        if key == "required" and not is_odd:
            is_odd = not all(isinstance(name, str) for name in value)
        if is_odd or (key in NOT_EMPTY and not value):
            report(
                path, f"the keyword {key!r} cannot be enforced: {_shown(value)} is no value of it"
            )
            del schema[key]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def _drop_keywords(schema: dict[str, Any], path: str, report: Report) -> None:
    for key in [key for key in schema if key in UNENFORCEABLE]:
        if not any(_same(schema[key], neutral) for neutral in UNENFORCEABLE[key]):
            report(path, f"the keyword {key!r} cannot be enforced")
        del schema[key]


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)  # 1 is not true


def _rewrite_string(schema: dict[str, Any], path: str, report: Report) -> None:
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and BEYOND_REGEX.search(pattern):
        shown = repr(pattern[:MAX_SHOWN])
        report(path, f"the keyword 'pattern' cannot be enforced: {shown} looks around or back")
        del schema["pattern"]
    if "format" in schema:
        most = FORMATS.get(schema["format"]) if isinstance(schema["format"], str) else None
        if most is None:
            del schema["format"]
        elif "maxLength" not in schema:
            schema["maxLength"] = max(most, _int(schema.get("minLength")))


def _int(value: Any) -> int:
    return value if type(value) is int else 0


def _rewrite_numbers(schema: dict[str, Any], path: str, report: Report) -> None:
    for key in ("const", "enum"):
        if key in schema and (lost := _inexact(schema[key])) is not None:
            report(
                path,
                f"the keyword {key!r} cannot be enforced: no double is {lost!r:.{MAX_SHOWN}};"
                " accepted: integers, other numbers of at most 15 digits, strings",
            )
            value = schema.pop(key)
            if key == "const" and type(value) is float:
                schema.setdefault("type", "number")
    if problem := _rewrite_bound(schema, LOWER, 1) or _rewrite_bound(schema, UPPER, -1):
        report(path, problem)
    # Ranges that are open at one side must not begin near the other end.
    if _beyond(schema, LOWER, 1) and not schema.keys() & UPPER:
        schema["maximum"] = MAX_BOUND
    elif _beyond(schema, UPPER, -1) and not schema.keys() & LOWER:
        schema["minimum"] = -MAX_BOUND


def _beyond(schema: Mapping[str, Any], keys: tuple[str, str], inward: int) -> bool:
    bounds = (schema.get(key) for key in keys)
    return any(isinstance(b, int | float) and inward * b > MAX_OPEN_BOUND for b in bounds)


def _inexact(value: Any) -> float | None:
    """A number in a value that the library would change; None if there is none.

    Integers have their digits (``exact_json``).
    """
    if type(value) is float:
        return None if _is_read_exactly(value) else value
    parts = value.values() if isinstance(value, Mapping) else value
    if isinstance(parts, str) or not isinstance(value, Mapping | list | tuple):
        return None
    return next((lost for part in parts if (lost := _inexact(part)) is not None), None)


def _is_read_exactly(number: float) -> bool:
    """Whether the library reads the shortest text of a number as that number."""
    if not math.isfinite(number):
        return False
    _, digits, exponent = Decimal(repr(number)).as_tuple()
    # It makes one double of all digits and divides it by a power of ten.
    whole = float("".join(map(str, digits)))
    if not isinstance(exponent, int) or abs(exponent) > 308:
        return False
    read = whole / 10.0**-exponent if exponent < 0 else whole * 10.0**exponent
    return read == abs(number)


def _rewrite_bound(schema: dict[str, Any], keys: tuple[str, str], inward: int) -> str | None:
    """Narrow a bound to one that the library knows exactly; what is wrong with it if there is none.

    ``inward`` is 1 for lower bounds and -1 for upper ones.
    """
    inclusive, exclusive = keys
    for key in keys:
        bound = schema.get(key)
        if type(bound) not in (int, float) or bound is None:
            continue
        if inward * bound > MAX_BOUND:
            del schema[key]
            return f"the keyword {key!r} cannot be enforced: {bound} is beyond 2^63"
        if inward * bound < -MAX_BOUND:
            schema[key] = -inward * MAX_BOUND
        elif type(bound) is float:
            while not _is_read_exactly(bound):
                bound = math.nextafter(bound, inward * math.inf)
            schema[key] = bound
        elif abs(bound) >= EXACT_INTEGERS:
            del schema[key]
            inside = _exact_inside(bound + inward if key == exclusive else bound, inward)
            known = schema.get(inclusive)
            narrower = isinstance(known, int | float) and inward * known > inward * inside
            schema[inclusive] = known if narrower else inside
    return None


def _exact_inside(bound: int, inward: int) -> int:
    """The next integer that is a double, in the direction of what is allowed."""
    near = float(bound)
    if inward * (int(near) - bound) < 0:
        near = math.nextafter(near, inward * math.inf)
    return int(near)
