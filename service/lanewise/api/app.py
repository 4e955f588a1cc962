"""The HTTP application: routes and what wraps them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from lanewise.api import warm_up
from lanewise.api.batches.making import make_runner
from lanewise.api.endpoints import documents, guide, health, page
from lanewise.api.endpoints.paths import Paths
from lanewise.api.endpoints.table import ENDPOINTS, error_forms
from lanewise.api.errors import ApiError, BadRequestError
from lanewise.api.http.keys import Keys
from lanewise.api.http.web_pages import WebPages
from lanewise.api.middleware import RequestMiddleware
from lanewise.api.shared.state import ServerState
from lanewise.text.tokenizing_error import TokenizingError

logger = logging.getLogger(__name__)


def create_app(state: ServerState, pages: WebPages, mcp_servers: Sequence[str] = ()) -> Starlette:
    """The application around one engine; ``pages`` says which web pages may use it.

    ``mcp_servers`` are the addresses of servers whose tools its own page offers.
    """
    own_page = page.Page(mcp_servers)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        warming = warm_up.begin(state)
        state.batches = make_runner(state)
        if state.batches is not None:
            state.batches.start()
        writing = asyncio.create_task(_write_usage(state))
        yield
        if state.batches is not None:
            await state.batches.stopped()
        if state.spending is not None:
            state.spending.stop()
        await writing
        warming.cancel()
        await state.sandbox.close()

    errors = error_forms()
    paths = Paths(ENDPOINTS)

    async def handle_api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return errors.response(error, request.url.path)

    async def handle_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return errors.response(paths.error(request, error, state), request.url.path)

    async def handle_tokenizer(request: Request, error: Exception) -> Response:
        logger.warning("%s %s: %s", request.method, request.url.path, error)
        return errors.response(BadRequestError(str(error)), request.url.path)

    described = documents.Documents(state.version).answer
    app = Starlette(
        routes=[
            *(KnownRoute(e.path, e.serve, methods=[e.method]) for e in ENDPOINTS),
            *(KnownRoute(path, described, methods=["GET"]) for path in documents.PATHS),
            *(KnownRoute(path, own_page.answer, methods=["GET"]) for path in page.FILES),
            *(KnownRoute(path, guide.answer, methods=["GET"]) for path in guide.ROUTES),
        ],
        # CORS is outermost: errors have its headers too, or browsers would hide them.
        middleware=[
            Middleware(CORSMiddleware, **pages.cors),
            Middleware(
                RequestMiddleware,
                keys=Keys(state.api_keys, state.admin_keys),
                pages=pages,
                # Documentation and page say nothing that the source does not.
                public={
                    *(*documents.PATHS, *page.FILES, *guide.PATHS),
                    *(e.path for e in ENDPOINTS if e.public),
                },
                canonical=paths.canonical,
                errors=errors,
                registry=state.engine.metrics.registry,
                asked=[(e.method, e.path) for e in ENDPOINTS if e.speaks],
                tracer=state.tracer,
                spending=state.spending,
                counted={(e.method, e.path) for e in ENDPOINTS if e.is_counted},
                model_of=state.canonical_name,
            ),
        ],
        exception_handlers={
            ApiError: handle_api_error,
            HTTPException: handle_http_error,
            TokenizingError: handle_tokenizer,
        },
        lifespan=lifespan,
    )
    app.state.server = state
    app.router.redirect_slashes = False
    health.count_readiness(state)
    if state.spending is not None:
        state.spending.count_in(state.engine.metrics.registry)
    return app


async def _write_usage(state: ServerState) -> None:
    if state.spending is not None:
        await state.spending.keep_writing()


class KnownRoute(Route):
    """A route that says so in the scope, for metrics."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As the base class."""
        match, child_scope = super().matches(scope)
        return match, child_scope if match is Match.NONE else {**child_scope, "route": self}
