"""JSON of a value that has several schemas, of some types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lanewise.text.answers.alternatives import Parts, Root
from lanewise.text.grammar import rule_of_json

SHARED = ("$defs", "definitions", "x-guidance")


def json_value(parts: Parts, types: Iterable[str], root: Root) -> str:
    """The rule of its JSON."""
    named = sorted(types)
    if "number" in named and "integer" in named:
        named.remove("integer")
    said: Any = named[0] if len(named) == 1 else named
    shared = {key: root[key] for key in SHARED if key in root}
    if len(parts) == 1:
        return rule_of_json({**shared, **parts[0], "type": said})
    return rule_of_json({**shared, "type": said, "allOf": list(parts)} if parts else {"type": said})
