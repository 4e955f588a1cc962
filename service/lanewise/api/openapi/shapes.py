"""JSON Schema in few words."""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
ANY: Schema = {}


def one_of(*values: str) -> Schema:
    """One of these texts."""
    return {"type": "string", "enum": list(values)}


def always(value: str) -> Schema:
    """This text."""
    return {"type": "string", "const": value}


def or_null(schema: Schema) -> Schema:
    """That, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def either(*schemas: Schema) -> Schema:
    """Any of these."""
    return {"anyOf": list(schemas)}


def array(items: Schema) -> Schema:
    """A list of these."""
    return {"type": "array", "items": items}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """An object with these properties; there may be more."""
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
    }


def mapping(values: Schema) -> Schema:
    """An object of any names."""
    return {"type": "object", "additionalProperties": values}
