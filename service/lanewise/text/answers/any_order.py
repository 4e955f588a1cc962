"""Objects whose properties come in any order, each once: models write what they were taught.

An order that a grammar forces puts the value that a model has in mind behind another key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lanewise.text.answers.alternatives import alternatives, values_of
from lanewise.text.answers.json_values import SHARED
from lanewise.text.answers.objects import object_form
from lanewise.text.answers.rules import quoted
from lanewise.text.grammar import JSON_STYLE, GrammarError, rule_of_json
from lanewise.text.json_schema import COERCED

BETWEEN, COLON = (str(JSON_STYLE[f"{name}_separator"]) for name in ("item", "key"))
MOST = 5  # properties: there is a rule for each set of those that are written
MAX_TEXT = 1 << 16  # characters of such rules in one grammar, of which each function has its share
REFERENCES = ("#/$defs/", "#/definitions/")


def in_any_order(schema: Mapping[str, Any], n_functions: int) -> str | None:
    """The rules of an object's JSON, one of ``n_functions``; None if it has its schema's order."""
    is_styled = schema.get("x-guidance", COERCED) != COERCED
    if is_styled or not 2 <= len(schema.get("properties", ())) <= MOST:
        return None
    try:
        forms = alternatives(schema, schema)
        if len(forms) != 1 or values_of(forms[0]) is not None:
            return None
        form = object_form(forms[0])
    except GrammarError:
        return None
    if form.other is not False or form.patterns or len(form.properties) > MOST:
        return None
    if not all(map(_stands_alone, form.properties.values())):
        return None
    shared = {key: schema[key] for key in SHARED if key in schema}
    names = list(form.properties)
    rules = [
        f"p{i}: {quoted(json.dumps(key, ensure_ascii=False) + COLON)}"
        f" {_value(shared, form.properties[key])}"
        for i, key in enumerate(names)
    ]
    properties = {f"p{i}": key in form.required for i, key in enumerate(names)}
    after = in_all_orders("a", properties, n_functions, f"{quoted(BETWEEN)} ")
    made = "\n".join(['start: "{" a_0 "}"', *rules, *(after or ())])
    return made if after and len(made) <= MAX_TEXT // n_functions else None


def in_all_orders(
    name: str, properties: Mapping[str, bool], n_functions: int, between: str = "", last: str = '""'
) -> list[str] | None:
    """Rules of properties in any order, of which ``name_0`` is all; None if these were too many.

    ``properties`` has the name of each one's rule and whether it is needed; ``last`` follows all.
    """
    count = len(properties)
    if not 2 <= count <= MOST:
        return None
    needed = sum(1 << i for i, is_needed in enumerate(properties.values()) if is_needed)
    made = list(_after(name, list(properties), needed, between, last))
    return made if sum(map(len, made)) <= MAX_TEXT // n_functions else None


def _value(shared: dict[str, Any], schema: Any) -> str:
    return rule_of_json({**shared, **schema} if isinstance(schema, Mapping) else schema)


def _after(name: str, rules: Sequence[str], needed: int, between: str, last: str) -> Iterator[str]:
    """What may follow, for each set of properties that have been written; sets are numbers."""
    for written in range(1 << len(rules)):
        comma = between if written else ""
        more = [
            f"{comma}{rule} {name}_{written | 1 << i}"
            for i, rule in enumerate(rules)
            if not written >> i & 1
        ]
        end = [last] if needed & ~written == 0 else []
        yield f"{name}_{written}: {' | '.join([*more, *end])}"


def _stands_alone(schema: Any) -> bool:
    """Whether all references are to what is shared."""
    parts: Sequence[Any] = ()
    if isinstance(schema, Mapping):
        reference = schema.get("$ref")
        if isinstance(reference, str) and not reference.startswith(REFERENCES):
            return False
        parts = list(schema.values())
    elif isinstance(schema, list | tuple):
        parts = schema
    return all(map(_stands_alone, parts))
