"""Items of tools that this server does not have, as those of functions: calls and results."""

import json
from typing import Any, NamedTuple

JsonItem = dict[str, Any]

CALL, OUTPUT = "_call", "_output"
# What says of an item which it is, and not what it does.
AROUND = {"type", "id", "call_id", "status", "created_by", "output", "execution", "namespace"}


class Call(NamedTuple):
    """A call of a tool's."""

    id: str
    name: str
    arguments: str  # JSON


def call_of(item: JsonItem) -> Call | None:
    """What a client's tool was called with; None if an item tells of no such call."""
    kind, id_ = item["type"], item.get("call_id")
    if kind == "mcp_call":  # with its result in it
        id_ = item.get("id")
    if not kind.endswith(CALL) or not isinstance(id_, str):
        return None
    said = {key: value for key, value in item.items() if key not in AROUND}
    name = said.pop("name", None)
    inside = next(iter(said.values())) if len(said) == 1 else said
    if isinstance(inside, str) and kind == "mcp_call":
        arguments = inside
    else:
        arguments = _dumps(inside if isinstance(inside, dict) else said)
    return Call(id_, name if isinstance(name, str) else kind.removesuffix(CALL), arguments)


def output_of(item: JsonItem) -> str | None:
    """What a tool gave; None if an item does not tell."""
    if item["type"].endswith(OUTPUT):
        found = item.get("output", {k: v for k, v in item.items() if k not in AROUND})
    else:
        found = item.get("output")
    if found is None or isinstance(found, str):
        return found
    return _dumps(found)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
