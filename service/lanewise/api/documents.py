"""``/openapi.json``, written by FastAPI; ``/docs`` is a page that reads it.

FastAPI is imported when somebody first asks for them: its models of OpenAPI take a quarter of a
second to build and 11 MiB, which a server that answers requests has no use for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from lanewise.api.endpoints import ENDPOINTS, Endpoint

if TYPE_CHECKING:
    from fastapi import FastAPI

PATHS = ("/openapi.json",)
SCHEMA_REFERENCE = "#/components/schemas/{model}"
ERROR_SCHEMA = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": "string", "nullable": True},
                "code": {"type": "string", "nullable": True},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": ERROR_SCHEMA}}}
    for status, text in {
        400: "A field has a value that cannot be used",
        401: "The API key is missing or wrong",
        403: "Not with this key, or on no server that was started like this one",
        404: "Another model is asked for",
        408: "The body did not arrive in time",
        413: "The body is too large",
        429: "The queue is full; see Retry-After",
        500: "The model failed",
        503: "The server is shutting down",
    }.items()
}


class Documents:
    """An ASGI application for the paths of the documentation."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._app: FastAPI | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if self._app is None:
            self._app = await asyncio.to_thread(describe, self._version)
        await self._app(scope, receive, send)


def describe(version: str) -> FastAPI:
    """An application that knows what there is and serves nothing but the description."""
    from fastapi import FastAPI

    app = FastAPI(title="Lanewise", version=version, docs_url=None, redoc_url=None)
    for endpoint in ENDPOINTS:
        _describe_endpoint(app, endpoint)
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        # Bodies are read by hand, so their schemas are put into the documentation by hand too.
        if app.openapi_schema is None:
            schemas = generate().setdefault("components", {}).setdefault("schemas", {})
            for model in (endpoint.body for endpoint in ENDPOINTS if endpoint.body):
                schema = model.model_json_schema(ref_template=SCHEMA_REFERENCE)
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
        return generate()

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _describe_endpoint(app: FastAPI, endpoint: Endpoint) -> None:
    async def plain() -> None:
        """Never called."""

    async def named(name: str) -> None:
        """Never called."""

    async def kept(response_id: str) -> None:
        """Never called."""

    arguments = {"{name": named, "{response_id}": kept}
    found = next((arguments[part] for part in arguments if part in endpoint.path), None)
    responses, extra = {}, {}
    if endpoint.body is not None:
        schema = {"$ref": SCHEMA_REFERENCE.format(model=endpoint.body.__name__)}
        content = {"application/json": {"schema": schema}}
        extra = {"requestBody": {"required": True, "content": content}}
        responses = ERRORS
    elif found is not None:
        responses = {404: ERRORS[404]}
    app.add_api_route(
        endpoint.path,
        found or plain,
        methods=[endpoint.method],
        name=endpoint.answer.__name__,
        summary=endpoint.summary,
        description=endpoint.answer.__doc__,
        responses=responses,
        response_model=None,
        openapi_extra=extra,
    )
