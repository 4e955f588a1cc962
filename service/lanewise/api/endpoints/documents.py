"""``/openapi.json``: FastAPI writes what it knows of routes, the rows of the table all else.

FastAPI is imported when the document is first asked for: its models of OpenAPI take a quarter of a
second to build and 11 MiB, which a server that answers requests has no use for.
"""

import asyncio
import re
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.endpoints.endpoint import Endpoint
from lanewise.api.endpoints.table import ENDPOINTS, error_forms
from lanewise.api.http.error_forms import ErrorForm
from lanewise.api.openapi.answers import ERRORS, SSE, Answer
from lanewise.api.openapi.shapes import TEXT, Schema, always, either, record

PATHS = ("/openapi.json",)
REFERENCE = "#/components/schemas/{model}"
KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


class Documents:
    """Answers with the document, which is made once."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._document: dict[str, Any] | None = None

    async def answer(self, _: Request) -> Response:
        """Answer one request."""
        if self._document is None:
            self._document = await asyncio.to_thread(describe, self._version)
        return JSONResponse(self._document)


def describe(version: str) -> dict[str, Any]:
    """What all endpoints take and give."""
    from fastapi.openapi.utils import get_openapi
    from fastapi.routing import APIRoute

    rows = [row for row in ENDPOINTS if row.method != "HEAD"]  # that is as its neighbour
    routes = [
        APIRoute(
            row.path,
            row.serve,
            methods=[row.method],
            name=row.answer.__name__,
            summary=row.summary,
            description=row.answer.__doc__,
            response_model=None,
        )
        for row in rows
    ]
    document = get_openapi(title="Lanewise", version=version, routes=routes)
    forms, schemas = error_forms(), dict[str, Schema]()
    # A server without keys wants none.
    document["security"] = [{}, *({name: []} for name in KEYS)]
    document["components"] = {"securitySchemes": KEYS, "schemas": schemas}
    for row in rows:
        path = row.path.replace(":path}", "}")
        operation = document["paths"][path][row.method.lower()]
        _complete(operation, row, forms.at(row.path), schemas)
    return document


def _complete(
    operation: dict[str, Any], row: Endpoint, form: ErrorForm, schemas: dict[str, Schema]
) -> None:
    """Write what a row says: parameters, body, answer, errors and keys."""
    if named := re.findall(r"{(\w+)", row.path):
        operation["parameters"] = [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": TEXT | {"title": name.replace("_", " ").title()},
            }
            for name in named
        ]
    if row.public:
        operation["security"] = []
    if row.body is not None:
        name = row.body.__name__
        schema = row.body.model_json_schema(ref_template=REFERENCE)
        for key, one in {**schema.pop("$defs", {}), name: schema}.items():
            if schemas.setdefault(key, one) != one:
                raise ValueError(f"two bodies have different schemas called {key}")
        operation["requestBody"] = {"required": True, "content": _of_schema(name)}
    schemas[form.name] = form.schema
    operation["responses"] = {} if row.gives is None else {"200": _answer(row.gives)}
    for status in row.statuses(form):
        said = {"description": ERRORS[status], "content": _of_schema(form.name)}
        operation["responses"][str(status)] = said


def _of_schema(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REFERENCE.format(model=name)}}}


def _answer(given: Answer | Schema) -> dict[str, Any]:
    answer = given if isinstance(given, Answer) else Answer(given)
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
