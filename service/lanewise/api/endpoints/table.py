"""Every endpoint once: what the router serves and what the documentation describes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, RootModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.dialects.chat_completions import CHAT_COMPLETIONS, ChatCompletionRequest
from lanewise.api.dialects.completions import COMPLETIONS, CompletionRequest
from lanewise.api.dialects.llama_completion import LLAMA_COMPLETION
from lanewise.api.dialects.llama_infill import LLAMA_INFILL
from lanewise.api.dialects.messages import COUNT_TOKENS, MESSAGES
from lanewise.api.dialects.ollama import OLLAMA_CHAT, OLLAMA_GENERATE
from lanewise.api.dialects.ollama_fields import PullRequest, ShowRequest
from lanewise.api.dialects.responses import endpoints as responses
from lanewise.api.dialects.responses.compacting import CompactRequest
from lanewise.api.dialects.responses.schema import ResponsesRequest
from lanewise.api.encoding import elsewhere, embeddings, ranking
from lanewise.api.endpoints import adapters, health, llama_server, models, ollama_models, tokenize
from lanewise.api.endpoints.absent import (
    MODEL,
    NEVER,
    NO_CLASSES,
    NO_RANKING,
    NO_ROWS,
    NO_TEXT,
    NO_VECTORS,
    NOT_POOLED,
    Absent,
    reason_of,
    refusal_of,
)
from lanewise.api.endpoints.tokenize import DetokenizeRequest, TokenizeRequest
from lanewise.api.errors import ApiError
from lanewise.api.generation import path
from lanewise.api.generation.dialect import Dialect
from lanewise.api.http.error_forms import ErrorForms, Refusal
from lanewise.api.schemas import (
    LoadAdapterRequest,
    UnloadAdapterRequest,
)
from lanewise.api.shared.state import ServerState

Speaking = Callable[[Request, ServerState, Dialect[Any]], Awaitable[Response]]
ANSWER: Speaking = path.answer
ANTHROPIC = "anthropic-version"  # a header that Anthropic's clients alone send


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path, what answers there, and the schema of its body.

    Where API keys are configured every endpoint wants one, unless it says ``public``.
    """

    path: str
    summary: str
    answer: Callable[[Request, ServerState], Awaitable[Response]]
    body: type[BaseModel] | None = None
    public: bool = False
    verb: str | None = None  # where the body does not say it
    refusal: Refusal = ApiError.response  # how errors look, here and below this path
    is_missing: bool = False  # it does nothing but say why it does nothing
    speaks: bool = False  # it answers in a dialect
    unless: Absent | None = None  # what is said where the model is not of the kind for it

    @classmethod
    def speaking(cls, path_: str, dialect: Dialect[Any], do: Speaking = ANSWER) -> Self:
        """An endpoint that answers what is asked in a dialect, or does something else with it."""

        async def answer(request: Request, state: ServerState) -> Response:
            return await do(request, state, dialect)

        answer.__name__, answer.__doc__ = dialect.name, f"{dialect.summary}."
        return cls(
            path_,
            dialect.summary,
            answer,
            dialect.body,
            refusal=dialect.refusal,
            speaks=True,
            unless=NO_TEXT,
        )

    @classmethod
    def missing(
        cls,
        path_: str,
        name: str,
        reason: str,
        verb: str = "POST",
        *,
        refusal: Refusal = ApiError.response,
    ) -> Self:
        """An endpoint of another server's that does nothing but say why it does nothing."""

        async def answer(_: Request, state: ServerState) -> Response:
            raise refusal_of(path_.split("/{")[0], reason, state)

        answer.__name__ = name
        answer.__doc__ = f"Not supported: {reason.replace(MODEL, 'the model')}."
        summary = "Not supported"
        return cls(path_, summary, answer, verb=verb, refusal=refusal, is_missing=True)

    @property
    def method(self) -> str:
        """The method of HTTP."""
        return self.verb or ("GET" if self.body is None else "POST")

    def served_by(self, state: ServerState) -> Callable[[Request], Awaitable[Response]]:
        """The function that a router calls."""

        async def answer(request: Request) -> Response:
            return await self.answer(request, state)

        absent = self.unless
        if absent is None or absent.has(state.pooling):
            return answer
        reason = reason_of(absent, state)

        async def refuse(_: Request) -> Response:
            raise refusal_of(self.path.split("/{")[0], reason, state)

        return refuse


async def list_models(request: Request, state: ServerState) -> Response:
    """The served model and its adapters."""
    if ANTHROPIC in request.headers:
        return JSONResponse(models.list_models_of_anthropic(state))
    return JSONResponse(models.list_models(state))


async def get_model(request: Request, state: ServerState) -> Response:
    """The served model, if that is its name."""
    name = request.path_params["name"]
    if ANTHROPIC in request.headers:
        return JSONResponse(models.model_of_anthropic(name, state))
    return JSONResponse(models.get_model(name, state))


async def list_lm_studio(_: Request, state: ServerState) -> Response:
    """The same, as clients of LM Studio read it."""
    return JSONResponse(models.list_models_of_lm_studio(state))


async def tokenizer_info(_: Request, state: ServerState) -> Response:
    """Special tokens and chat template."""
    return JSONResponse(tokenize.tokenizer_info(state))


async def live(_: Request, state: ServerState) -> Response:
    """Whether the engine's thread runs."""
    return health.live(state)


async def ready(_: Request, state: ServerState) -> Response:
    """Whether requests are welcome."""
    return health.ready(state)


class Invocation(RootModel[ChatCompletionRequest | CompletionRequest]):
    """Body of ``POST /invocations``: with messages a conversation's, else a completion's."""


async def invocations(request: Request, state: ServerState) -> Response:
    """An answer in the form of /v1/chat/completions where there are messages, else of the other."""

    def by_field(data: Any) -> Dialect[Any]:
        is_chat = isinstance(data, dict) and "messages" in data
        return CHAT_COMPLETIONS if is_chat else COMPLETIONS

    return await path.answer_in(request, state, by_field, ApiError.response)


async def metrics(request: Request, state: ServerState) -> Response:
    """All metrics, in Prometheus' text format or in OpenMetrics for clients that accept it."""
    text, media_type = await state.scrapes.text(request.headers.get("accept", ""))
    return Response(text, media_type=media_type)


async def version(_: Request, state: ServerState) -> Response:
    """The server's version."""
    return JSONResponse({"version": state.version})


ELSEWHERE = ollama_models.ELSEWHERE
LLAMAS = LLAMA_COMPLETION.refusal
KEPT_RESPONSE = "/v1/responses/{response_id}"


def _vectors(
    path_: str,
    answer: Callable[[Request, ServerState], Awaitable[Response]],
    body: type[BaseModel],
    refusal: Refusal = ApiError.response,
) -> Endpoint:
    return Endpoint(path_, "Vectors of texts", answer, body, refusal=refusal, unless=NO_VECTORS)


ENDPOINTS = (
    Endpoint.speaking("/v1/completions", COMPLETIONS),
    Endpoint.speaking("/v1/chat/completions", CHAT_COMPLETIONS),
    Endpoint(
        "/v1/responses",
        "Answer a conversation of items",
        responses.create_response,
        ResponsesRequest,
        speaks=True,
        unless=NO_TEXT,
    ),
    Endpoint(
        "/v1/responses/compact",
        "Make a conversation of items shorter",
        responses.compact_response,
        CompactRequest,
        speaks=True,
        unless=NO_TEXT,
    ),
    Endpoint(
        "/v1/responses/input_tokens",
        "Count the tokens of a conversation of items",
        responses.count_input_tokens,
        ResponsesRequest,
        speaks=True,
        unless=NO_TEXT,
    ),
    Endpoint(KEPT_RESPONSE, "A response that is kept", responses.get_response),
    Endpoint(KEPT_RESPONSE, "Keep it no longer", responses.delete_response, verb="DELETE"),
    Endpoint(f"{KEPT_RESPONSE}/input_items", "What it answers", responses.list_input_items),
    Endpoint(f"{KEPT_RESPONSE}/cancel", "A clear no", responses.cancel_response, verb="POST"),
    Endpoint.speaking("/v1/messages", MESSAGES),
    Endpoint.speaking("/v1/messages/count_tokens", COUNT_TOKENS, path.count),
    Endpoint("/tokenize", "Text or messages to token ids", tokenize.tokenize, TokenizeRequest),
    Endpoint("/detokenize", "Token ids to text", tokenize.detokenize, DetokenizeRequest),
    Endpoint("/v1/models", "The served model and its adapters", list_models),
    Endpoint("/v1/models/{name:path}", "One model", get_model),
    Endpoint("/api/v0/models", "The models, in LM Studio's words", list_lm_studio),
    Endpoint(
        "/v1/load_lora_adapter",
        "Load a LoRA adapter and offer it as a model",
        adapters.load_adapter,
        LoadAdapterRequest,
    ),
    Endpoint(
        "/v1/unload_lora_adapter",
        "Offer a LoRA adapter no more",
        adapters.unload_adapter,
        UnloadAdapterRequest,
    ),
    Endpoint("/tokenizer_info", "Special tokens and chat template", tokenizer_info),
    # What models that are pooled do.
    _vectors("/v1/embeddings", embeddings.embeddings, embeddings.EmbeddingRequest),
    Endpoint(
        "/pooling",
        "Vectors of texts, or of their tokens",
        embeddings.pooling,
        embeddings.PoolingRequest,
        unless=NO_ROWS,
    ),
    *(
        Endpoint(
            path_,
            "Rank documents",
            ranking.rerank,
            ranking.RerankRequest,
            unless=NO_RANKING,
        )
        for path_ in ("/v1/rerank", "/v2/rerank", "/v1/reranking")
    ),
    Endpoint(
        "/v1/score",
        "How well texts fit together",
        ranking.score,
        ranking.ScoreRequest,
        unless=NO_RANKING,
    ),
    Endpoint(
        "/classify",
        "Classes of texts",
        ranking.classify,
        ranking.ClassifyRequest,
        unless=NO_CLASSES,
    ),
    # text-embeddings-inference.
    _vectors("/embed", elsewhere.tei_embed, elsewhere.TeiEmbedRequest),
    Endpoint("/info", "What the model is", elsewhere.tei_info, unless=NOT_POOLED),
    # Ollama's API.
    Endpoint.speaking("/api/chat", OLLAMA_CHAT),
    Endpoint.speaking("/api/generate", OLLAMA_GENERATE),
    Endpoint("/api/tags", "The models, in Ollama's words", ollama_models.ollama_tags),
    Endpoint("/api/ps", "The same, for all are in memory", ollama_models.ollama_ps),
    Endpoint("/api/show", "What a model can do", ollama_models.ollama_show, ShowRequest),
    Endpoint("/api/version", "The version of Ollama's API", ollama_models.ollama_version),
    Endpoint("/api/pull", "Success if it is here", ollama_models.ollama_pull, PullRequest),
    Endpoint.missing("/api/create", "ollama_create", ELSEWHERE),
    Endpoint.missing("/api/push", "ollama_push", ELSEWHERE),
    Endpoint.missing("/api/copy", "ollama_copy", ELSEWHERE),
    Endpoint.missing("/api/delete", "ollama_delete", ELSEWHERE, "DELETE"),
    Endpoint.missing("/api/blobs/{name:path}", "ollama_create_blob", ELSEWHERE),
    Endpoint.missing("/api/blobs/{name:path}", "ollama_find_blob", ELSEWHERE, "HEAD"),
    _vectors("/api/embed", elsewhere.ollama_embed, elsewhere.OllamaEmbedRequest),
    _vectors("/api/embeddings", elsewhere.ollama_embeddings, elsewhere.OllamaEmbeddingsRequest),
    # llama.cpp's server.
    Endpoint.speaking("/completion", LLAMA_COMPLETION),
    Endpoint.speaking("/infill", LLAMA_INFILL),
    Endpoint("/props", "What the server is", llama_server.props),
    Endpoint(
        "/slots", "Sequences that run at once", llama_server.slots, refusal=LLAMAS, unless=NO_TEXT
    ),
    Endpoint(
        "/apply-template",
        "Messages to the text that the model gets",
        llama_server.apply_template,
        llama_server.ApplyTemplateRequest,
        refusal=LLAMAS,
        unless=NO_TEXT,
    ),
    _vectors("/embedding", elsewhere.llama_embedding, elsewhere.LlamaEmbeddingRequest, LLAMAS),
    # Probes and scrapers carry no keys.
    Endpoint("/health", "Alive?", live, public=True),
    Endpoint("/health/live", "Alive?", live, public=True),
    Endpoint("/health/ready", "Ready for requests?", ready, public=True),
    Endpoint("/v1/health", "Alive?", live, public=True),
    # SageMaker's.
    Endpoint("/ping", "Ready for requests?", ready, public=True),
    Endpoint("/ping", "Ready for requests?", ready, public=True, verb="POST"),
    Endpoint(
        "/invocations",
        "Answer a conversation or continue text",
        invocations,
        Invocation,
        speaks=True,
        unless=NO_TEXT,
    ),
    Endpoint("/metrics", "Prometheus metrics", metrics, public=True),
    Endpoint("/version", "The server's version", version, public=True),
    *(
        Endpoint.missing(path_, path_[1:].replace("/", "_"), absent.reason)
        for absent in NEVER
        for path_ in absent.paths
    ),
)


def error_forms() -> ErrorForms:
    """The form of errors at every path."""
    forms = {e.path: e.refusal for e in ENDPOINTS if e.refusal is not ApiError.response}
    return ErrorForms(forms | {"/api": OLLAMA_CHAT.refusal})
