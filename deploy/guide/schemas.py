"""Tables of the fields that endpoints take, from the schemas of the API's description."""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
REF = "#/components/schemas/"
MAX_CONSTANTS = 8


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def fields_table(schema: Schema, left_out: frozenset[str] = frozenset()) -> list[str]:
    """A row for each field, those that must be there first."""
    needed = set(schema.get("required", ()))
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    fields = [(name, one) for name, one in schema["properties"].items() if name not in left_out]
    for name, one in sorted(fields, key=lambda pair: pair[0] not in needed):
        default = "**required**" if name in needed else _default(one)
        lines.append(
            f"| `{name}` | {cell(kind_of(one))} | {cell(default)} |"
            f" {cell(one.get('description') or '')} |"
        )
    return lines


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if value is None or value in ([], {}, ""):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def kind_of(schema: Schema) -> str:
    """The type of a field in a few words, with its bounds."""
    if "$ref" in schema:
        return f"`{str(schema['$ref']).removeprefix(REF)}`"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        kinds = dict.fromkeys(kind_of(one) for one in choices if one.get("type") != "null")
        return " or ".join(kinds) or "null"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"][:MAX_CONSTANTS])
    if "allOf" in schema:
        return kind_of(schema["allOf"][0])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {kind_of(schema.get('items', {}))}"
    return f"{kind}{_bounds(schema)}"


def _bounds(schema: Schema) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if high is not None and high >= 2**31:  # what fits into its type says nothing to a reader
        high = None
    if low is None and high is None:
        return ""
    if high is None:
        return f", at least {low:g}" if low > -(2**31) else ""
    return f", {low:g} to {high:g}" if low is not None else f", at most {high:g}"


def inner_schemas(schema: Schema, every: Mapping[str, Schema]) -> Iterator[str]:
    """The names of the schemas that a schema's fields are made of, each once, nearest first."""
    seen: list[str] = []
    waiting: list[Any] = [schema]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, dict):
            name = str(one.get("$ref", "")).removeprefix(REF)
            if name and name not in seen:
                seen.append(name)
                yield name
                waiting.append(every[name])
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
