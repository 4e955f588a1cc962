"""The FastAPI application: routes, their documentation, and what wraps them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from lanewise.api import chat_completions, completions, health, models, tokenize
from lanewise.api.errors import ApiError, handle_api_error, handle_http_error
from lanewise.api.middleware import RequestMiddleware
from lanewise.api.schemas import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from lanewise.api.state import ServerState

F = TypeVar("F", bound=Callable[..., Any])

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
        404: "Another model is asked for",
        413: "The body is too large",
        429: "The queue is full; see Retry-After",
        500: "The model failed",
        503: "The server is shutting down",
    }.items()
}
SCHEMA_REFERENCE = "#/components/schemas/{model}"


def create_app(state: ServerState, *, cors_origins: tuple[str, ...] = ("*",)) -> FastAPI:
    """The application around one engine."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(health.warm_up(state))
        yield
        warming.cancel()

    app = FastAPI(
        title="Lanewise", version=state.version, lifespan=lifespan, redirect_slashes=False
    )
    _add_generation(app, state)
    _add_information(app, state)
    app.add_exception_handler(ApiError, handle_api_error)
    app.add_exception_handler(HTTPException, handle_http_error)
    app.add_middleware(
        RequestMiddleware, api_keys=state.api_keys, registry=state.engine.metrics.registry
    )
    # Added last, so outermost: errors have its headers too, or browsers would hide them.
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(cors_origins),
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after"],
    )
    _document_bodies(app)
    return app


def _add_generation(app: FastAPI, state: ServerState) -> None:
    def post(path: str, schema: type[BaseModel], summary: str) -> Callable[[F], F]:
        body = {"$ref": SCHEMA_REFERENCE.format(model=schema.__name__)}
        content = {"application/json": {"schema": body}}
        return app.post(
            path,
            summary=summary,
            responses=ERRORS,
            response_model=None,
            openapi_extra={"requestBody": {"required": True, "content": content}},
        )

    @post("/v1/completions", CompletionRequest, "Continue prompts")
    async def create_completion(request: Request) -> Response:
        return await completions.create_completion(request, state)

    @post("/v1/chat/completions", ChatCompletionRequest, "Answer a conversation")
    async def create_chat_completion(request: Request) -> Response:
        return await chat_completions.create_chat_completion(request, state)

    @post("/tokenize", TokenizeRequest, "Text or messages to token ids")
    async def tokenize_text(request: Request) -> Response:
        return await tokenize.tokenize(request, state)

    @post("/detokenize", DetokenizeRequest, "Token ids to text")
    async def detokenize_ids(request: Request) -> Response:
        return await tokenize.detokenize(request, state)


def _add_information(app: FastAPI, state: ServerState) -> None:
    @app.get("/v1/models", summary="The served model")
    async def list_models() -> dict[str, Any]:
        return models.list_models(state)

    @app.get("/v1/models/{name:path}", summary="One model", responses={404: ERRORS[404]})
    async def get_model(name: str) -> dict[str, Any]:
        return models.get_model(name, state)

    @app.get("/tokenizer_info", summary="Special tokens and chat template")
    async def tokenizer_info() -> dict[str, Any]:
        return tokenize.tokenizer_info(state)

    @app.get("/health", summary="Alive?", response_model=None)
    @app.get("/health/live", summary="Alive?", response_model=None)
    async def live() -> Response:
        return health.live(state)

    @app.get("/health/ready", summary="Ready for requests?", response_model=None)
    async def ready() -> Response:
        return health.ready(state)

    @app.get("/metrics", summary="Prometheus metrics", response_model=None)
    async def metrics() -> Response:
        text = state.engine.metrics.render()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/version", summary="The server's version")
    async def version() -> dict[str, str]:
        return {"version": state.version}


def _document_bodies(app: FastAPI) -> None:
    """Bodies are read by hand, so their schemas are put into the documentation by hand too."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schemas = generate().setdefault("components", {}).setdefault("schemas", {})
            for model in (
                CompletionRequest,
                ChatCompletionRequest,
                TokenizeRequest,
                DetokenizeRequest,
            ):
                schema = model.model_json_schema(ref_template=SCHEMA_REFERENCE)
                schemas.update(schema.pop("$defs", {}))
                schemas[model.__name__] = schema
        return generate()

    app.openapi = openapi  # type: ignore[method-assign]
