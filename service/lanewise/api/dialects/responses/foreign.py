"""Items of tools that this server does not have, as those of functions: calls and results."""

import base64
import binascii
import json
from typing import Any, NamedTuple

JsonItem = dict[str, Any]

CALL, OUTPUT = "_call", "_output"
# What says of an item which it is, and not what it does.
AROUND = {"type", "id", "call_id", "status", "created_by", "output", "execution", "namespace"}


# Clients send back what they cannot read: it is marked, because others' is truly encrypted.
MARK = "lanewise:"


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


def compacted(text: str) -> JsonItem:
    """The item that stands for a conversation."""
    return {
        "type": "compaction",
        "encrypted_content": MARK + base64.b64encode(text.encode()).decode(),
    }


def summary_of(item: JsonItem) -> str | None:
    """What such an item says; None if it is not one of ours."""
    content = item.get("encrypted_content")
    if item["type"] != "compaction" or not isinstance(content, str) or not content.startswith(MARK):
        return None
    try:
        return base64.b64decode(content.removeprefix(MARK), validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
