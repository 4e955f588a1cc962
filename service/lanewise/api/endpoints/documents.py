"""``/openapi.json``, written by FastAPI; ``/docs`` is a page that reads it.

FastAPI is imported when somebody first asks for them: its models of OpenAPI take a quarter of a
second to build and 11 MiB, which a server that answers requests has no use for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from lanewise.api.endpoints.table import ENDPOINTS, Endpoint
from lanewise.api.openapi.document import complete

if TYPE_CHECKING:
    from fastapi import FastAPI

PATHS = ("/openapi.json",)


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
        if app.openapi_schema is None:
            app.openapi_schema = complete(generate(), ENDPOINTS)
        return app.openapi_schema

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
    app.add_api_route(
        endpoint.path,
        found or plain,
        methods=[endpoint.method],
        name=endpoint.answer.__name__,
        summary=endpoint.summary,
        description=endpoint.answer.__doc__,
        response_model=None,
    )
