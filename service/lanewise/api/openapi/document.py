"""Completes what FastAPI writes of paths: bodies, answers, errors and keys."""

from collections.abc import Iterable
from typing import Any

from lanewise.api.endpoints.table import Endpoint
from lanewise.api.openapi.answers import ANSWERS, ERRORS, SSE, Answer, error_schema, statuses
from lanewise.api.openapi.shapes import TEXT, Schema, always, either, record

REFERENCE = "#/components/schemas/{model}"
KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def complete(document: dict[str, Any], endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The document with all that endpoints take and give; it is changed in place."""
    components = document.setdefault("components", {})
    components["securitySchemes"] = KEYS
    schemas: dict[str, Schema] = {}
    components["schemas"] = schemas
    # A server without keys wants none.
    document["security"] = [{}, *({name: []} for name in KEYS)]
    for endpoint in endpoints:
        path = endpoint.path.replace(":path}", "}")
        if endpoint.method == "HEAD":  # as its neighbour, without a body
            del document["paths"][path]["head"]
            continue
        operation = document["paths"][path][endpoint.method.lower()]
        if endpoint.public:
            operation["security"] = []
        if endpoint.body is not None:
            name = endpoint.body.__name__
            schema = endpoint.body.model_json_schema(ref_template=REFERENCE)
            for key, one in {**schema.pop("$defs", {}), name: schema}.items():
                if schemas.setdefault(key, one) != one:
                    raise ValueError(f"two bodies have different schemas called {key}")
            content = {"application/json": {"schema": {"$ref": REFERENCE.format(model=name)}}}
            operation["requestBody"] = {"required": True, "content": content}
        operation["responses"] = _responses(endpoint, path, schemas)
    return document


def _responses(endpoint: Endpoint, path: str, schemas: dict[str, Schema]) -> dict[str, Any]:
    answer = ANSWERS.get((endpoint.method, path))
    responses = {} if answer is None else {"200": _answer(answer)}
    name, schema = error_schema(path)
    schemas[name] = schema
    form = {"application/json": {"schema": {"$ref": REFERENCE.format(model=name)}}}
    found = statuses(
        path,
        has_body=endpoint.body is not None,
        is_missing=endpoint.is_missing or endpoint.unless is not None,
        is_public=endpoint.public,
    )
    for status in found:
        responses[str(status)] = {"description": ERRORS[status], "content": form}
    return responses


def _answer(answer: Answer) -> dict[str, Any]:
    content: dict[str, Any] = {answer.whole_type: {"schema": answer.whole}}
    if answer.streamed is not None:
        piece = {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": answer.streamed,
        }
        if answer.stream_end is not None:
            piece = either(always(answer.stream_end), piece)
        is_events = answer.stream_type == SSE
        schema = record({"data": piece}, {"event": TEXT}) if is_events else piece
        content[answer.stream_type] = {"schema": schema}
    return {"description": "The answer, or a stream of it", "content": content}
