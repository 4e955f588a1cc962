"""Every endpoint once: what the router serves, and what the documentation says of it."""

from typing import Any

from pydantic import RootModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.dialects.chat_completions import CHAT_COMPLETIONS, ChatCompletionRequest
from lanewise.api.dialects.completions import COMPLETIONS, CompletionRequest
from lanewise.api.dialects.llama_completion import LLAMA_COMPLETION
from lanewise.api.dialects.llama_infill import LLAMA_INFILL
from lanewise.api.dialects.messages import COUNT_TOKENS, MESSAGES
from lanewise.api.dialects.ollama import OLLAMA_CHAT, OLLAMA_GENERATE
from lanewise.api.dialects.ollama_fields import PullRequest, ShowRequest
from lanewise.api.dialects.responses.compacting import CompactRequest
from lanewise.api.dialects.responses.endpoints import (
    cancel_response,
    compact_response,
    count_input_tokens,
    create_response,
    delete_response,
    get_response,
    list_input_items,
)
from lanewise.api.dialects.responses.schema import ResponsesRequest
from lanewise.api.encoding import elsewhere, ranking
from lanewise.api.encoding.embeddings import EmbeddingRequest, PoolingRequest, embeddings, pooling
from lanewise.api.endpoints import adapters, llama_server
from lanewise.api.endpoints.absent import (
    NEVER,
    NO_CLASSES,
    NO_RANKING,
    NO_ROWS,
    NO_SCORES,
    NO_TEXT,
    NO_VECTORS,
    NOT_POOLED,
)
from lanewise.api.endpoints.endpoint import Answering, Body, Endpoint, Given
from lanewise.api.endpoints.health import live, ready
from lanewise.api.endpoints.kept import KEPT
from lanewise.api.endpoints.models import get_model, list_lm_studio, list_models
from lanewise.api.endpoints.ollama_models import (
    ELSEWHERE,
    ollama_ps,
    ollama_pull,
    ollama_show,
    ollama_tags,
    ollama_version,
)
from lanewise.api.endpoints.tokenize import (
    DetokenizeRequest,
    TokenizeRequest,
    detokenize,
    tokenize,
    tokenizer_info,
)
from lanewise.api.generation import path
from lanewise.api.generation.dialect import Dialect
from lanewise.api.http.error_forms import OPENAI, ErrorForm, ErrorForms
from lanewise.api.likelihoods.deciding import SystemOneRequest, systemone
from lanewise.api.openapi import openai_answers as openai
from lanewise.api.openapi import other_answers as other
from lanewise.api.openapi import pooled_answers as pooled
from lanewise.api.openapi.answers import NDJSON, Answer
from lanewise.api.openapi.shapes import TEXT, Schema, either
from lanewise.api.schemas import LoadAdapterRequest, UnloadAdapterRequest
from lanewise.api.shared.state import ServerState


class Invocation(RootModel[ChatCompletionRequest | CompletionRequest]):
    """Body of ``POST /invocations``: with messages a conversation's, else a completion's."""


async def invocations(request: Request, state: ServerState) -> Response:
    """An answer in the form of /v1/chat/completions where there are messages, else of the other."""

    def by_field(data: Any) -> Dialect[Any]:
        is_chat = isinstance(data, dict) and "messages" in data
        return CHAT_COMPLETIONS if is_chat else COMPLETIONS

    return await path.answer_in(request, state, by_field, OPENAI)


async def metrics(request: Request, state: ServerState) -> Response:
    """All metrics, in Prometheus' text format or in OpenMetrics for clients that accept it."""
    text, media_type = await state.scrapes.text(request.headers.get("accept", ""))
    return Response(text, media_type=media_type)


async def version(_: Request, state: ServerState) -> Response:
    """The server's version."""
    return JSONResponse({"version": state.version})


RESPONSES = "/v1/responses"
DONE = "[DONE]"
CHAT = Answer(openai.CHAT, openai.CHAT_CHUNK, stream_end=DONE)
COMPLETION = Answer(openai.COMPLETION, openai.COMPLETION_CHUNK, stream_end=DONE)
EITHER = Answer(
    either(openai.CHAT, openai.COMPLETION),
    either(openai.CHAT_CHUNK, openai.COMPLETION_CHUNK),
    stream_end=DONE,
)
RESPONSE = Answer(openai.RESPONSE, openai.RESPONSE_EVENT)
MESSAGE = Answer(other.MESSAGE, other.MESSAGE_EVENT)
LLAMA_TEXT = Answer(other.LLAMA_COMPLETIONS, other.LLAMA_COMPLETION)
IN_WORDS = Answer(TEXT, whole_type="text/plain; charset=utf-8")
METRICS = Answer(TEXT, whole_type="text/plain; version=0.0.4; charset=utf-8")
ANY_MODELS = either(openai.MODELS, other.MODELS_OF_ANTHROPIC)
ANY_MODEL = either(openai.MODEL, other.MODEL_OF_ANTHROPIC)
# What is not well is said in the same words.
HEALTH = ErrorForm("Health", openai.STATUS, also=(503,))


def _lines(of: Schema) -> Answer:
    return Answer(of, of, NDJSON)


def _items(below: str, summary: str, answer: Answering, gives: Given, body: Body) -> Endpoint:
    path_ = RESPONSES + below
    return Endpoint(path_, summary, answer, gives, body, speaks=True, unless=NO_TEXT)


def _kept(
    below: str, summary: str, answer: Answering, gives: Given | None, verb: str | None = None
) -> Endpoint:
    path_ = RESPONSES + "/{response_id}" + below
    return Endpoint(path_, summary, answer, gives, verb=verb, also=(400, 404))


def _rank(path_: str) -> Endpoint:
    answer, body = ranking.rerank, ranking.RerankRequest
    return Endpoint(path_, "Rank documents", answer, pooled.RANKED, body, unless=NO_RANKING)


def _vectors(
    path_: str, answer: Answering, gives: Schema, body: Body, errors: ErrorForm = OPENAI
) -> Endpoint:
    summary = "Vectors of texts"
    return Endpoint(path_, summary, answer, gives, body, errors=errors, unless=NO_VECTORS)


def _probe(path_: str, answer: Answering, verb: str = "GET") -> Endpoint:
    summary = "Alive?" if answer is live else "Ready for requests?"
    gives = openai.STATUS
    return Endpoint(path_, summary, answer, gives, public=True, verb=verb, errors=HEALTH)


ENDPOINTS = (
    Endpoint.speaking("/v1/completions", COMPLETIONS, COMPLETION),
    Endpoint.speaking("/v1/chat/completions", CHAT_COMPLETIONS, CHAT),
    _items("", "Answer a conversation of items", create_response, RESPONSE, ResponsesRequest),
    _items(
        "/compact",
        "Make a conversation of items shorter",
        compact_response,
        openai.COMPACTED,
        CompactRequest,
    ),
    _items(
        "/input_tokens",
        "Count the tokens of a conversation of items",
        count_input_tokens,
        openai.INPUT_TOKENS,
        ResponsesRequest,
    ),
    _kept("", "A response that is kept", get_response, RESPONSE),
    _kept("", "Keep it no longer", delete_response, openai.DELETED, "DELETE"),
    _kept("/input_items", "What it answers", list_input_items, openai.ITEM_LIST),
    _kept("/cancel", "A clear no", cancel_response, None, "POST"),
    Endpoint.speaking("/v1/messages", MESSAGES, MESSAGE),
    Endpoint.speaking("/v1/messages/count_tokens", COUNT_TOKENS, other.MESSAGE_TOKENS, path.count),
    Endpoint(
        "/tokenize", "Text or messages to token ids", tokenize, openai.TOKENS, TokenizeRequest
    ),
    Endpoint("/detokenize", "Token ids to text", detokenize, openai.DETOKENIZED, DetokenizeRequest),
    Endpoint("/v1/models", "The served model and its adapters", list_models, ANY_MODELS),
    Endpoint("/v1/models/{name:path}", "One model", get_model, ANY_MODEL, also=(404,)),
    Endpoint(
        "/api/v0/models",
        "The models, in LM Studio's words",
        list_lm_studio,
        openai.MODELS_OF_LM_STUDIO,
    ),
    Endpoint(
        "/v1/load_lora_adapter",
        "Load a LoRA adapter and offer it as a model",
        adapters.load_adapter,
        IN_WORDS,
        LoadAdapterRequest,
        also=(403, 409),
    ),
    Endpoint(
        "/v1/unload_lora_adapter",
        "Offer a LoRA adapter no more",
        adapters.unload_adapter,
        IN_WORDS,
        UnloadAdapterRequest,
        also=(403, 409),
    ),
    Endpoint(
        "/tokenizer_info", "Special tokens and chat template", tokenizer_info, openai.TOKENIZER
    ),
    # What models that are pooled do.
    _vectors("/v1/embeddings", embeddings, pooled.EMBEDDINGS, EmbeddingRequest),
    Endpoint(
        "/pooling",
        "Vectors of texts, or of their tokens",
        pooling,
        pooled.POOLED,
        PoolingRequest,
        unless=NO_ROWS,
    ),
    *(_rank(path_) for path_ in ("/v1/rerank", "/v2/rerank", "/v1/reranking")),
    Endpoint(
        "/v1/score",
        "How well texts fit together, or how likely continuations of a prompt are",
        ranking.score,
        pooled.SCORES,
        ranking.ScoreRequest,
        unless=NO_SCORES,
    ),
    Endpoint(
        "/v1/classify",
        "Classes of texts",
        ranking.classify,
        pooled.CLASSES,
        ranking.ClassifyRequest,
        unless=NO_CLASSES,
    ),
    Endpoint(
        "/v1/systemone",
        "Answer typed questions about a state with probabilities",
        systemone,
        pooled.DECISIONS,
        SystemOneRequest,
        unless=NO_TEXT,
        computes=True,
    ),
    # text-embeddings-inference.
    _vectors("/embed", elsewhere.tei_embed, pooled.VECTORS, elsewhere.TeiEmbedRequest),
    Endpoint("/info", "What the model is", elsewhere.tei_info, pooled.INFO, unless=NOT_POOLED),
    # Ollama's API.
    Endpoint.speaking("/api/chat", OLLAMA_CHAT, _lines(other.OLLAMA_CHAT)),
    Endpoint.speaking("/api/generate", OLLAMA_GENERATE, _lines(other.OLLAMA_GENERATE)),
    Endpoint("/api/tags", "The models, in Ollama's words", ollama_tags, other.OLLAMA_MODELS),
    Endpoint("/api/ps", "The same, for all are in memory", ollama_ps, other.OLLAMA_MODELS),
    Endpoint("/api/show", "What a model can do", ollama_show, other.OLLAMA_MODEL, ShowRequest),
    Endpoint("/api/version", "The version of Ollama's API", ollama_version, openai.VERSION),
    Endpoint(
        "/api/pull",
        "Success if it is here",
        ollama_pull,
        _lines(other.OLLAMA_STATUS),
        PullRequest,
        also=(501,),
    ),
    Endpoint.missing("/api/create", "ollama_create", ELSEWHERE),
    Endpoint.missing("/api/push", "ollama_push", ELSEWHERE),
    Endpoint.missing("/api/copy", "ollama_copy", ELSEWHERE),
    Endpoint.missing("/api/delete", "ollama_delete", ELSEWHERE, "DELETE"),
    Endpoint.missing("/api/blobs/{name:path}", "ollama_create_blob", ELSEWHERE),
    Endpoint.missing("/api/blobs/{name:path}", "ollama_find_blob", ELSEWHERE, "HEAD"),
    _vectors(
        "/api/embed", elsewhere.ollama_embed, pooled.OLLAMA_VECTORS, elsewhere.OllamaEmbedRequest
    ),
    _vectors(
        "/api/embeddings",
        elsewhere.ollama_embeddings,
        pooled.OLLAMA_VECTOR,
        elsewhere.OllamaEmbeddingsRequest,
    ),
    # llama.cpp's server.
    Endpoint.speaking("/completion", LLAMA_COMPLETION, LLAMA_TEXT),
    Endpoint.speaking("/infill", LLAMA_INFILL, LLAMA_TEXT),
    Endpoint("/props", "What the server is", llama_server.props, other.PROPS),
    Endpoint(
        "/slots",
        "Sequences that run at once",
        llama_server.slots,
        other.SLOTS,
        errors=LLAMA_COMPLETION.errors,
        unless=NO_TEXT,
    ),
    Endpoint(
        "/apply-template",
        "Messages to the text that the model gets",
        llama_server.apply_template,
        other.TEMPLATED,
        llama_server.ApplyTemplateRequest,
        errors=LLAMA_COMPLETION.errors,
        unless=NO_TEXT,
    ),
    Endpoint(
        "/v1/chat/completions/control",
        "End the reasoning of an answer that is being written",
        llama_server.control,
        other.CONTROLLED,
        llama_server.ControlRequest,
        unless=NO_TEXT,
    ),
    _vectors(
        "/embedding",
        elsewhere.llama_embedding,
        pooled.LLAMA_VECTORS,
        elsewhere.LlamaEmbeddingRequest,
        LLAMA_COMPLETION.errors,
    ),
    # Probes and scrapers carry no keys.
    _probe("/health", live),
    _probe("/health/live", live),
    _probe("/health/ready", ready),
    _probe("/v1/health", live),
    # SageMaker's.
    _probe("/ping", ready),
    _probe("/ping", ready, "POST"),
    Endpoint(
        "/invocations",
        "Answer a conversation or continue text",
        invocations,
        EITHER,
        Invocation,
        speaks=True,
        unless=NO_TEXT,
    ),
    *KEPT,
    Endpoint("/metrics", "Prometheus metrics", metrics, METRICS, public=True),
    Endpoint("/version", "The server's version", version, openai.VERSION, public=True),
    *(
        Endpoint.missing(path_, path_[1:].replace("/", "_"), absent.reason)
        for absent in NEVER
        for path_ in absent.paths
    ),
)


def error_forms() -> ErrorForms:
    """The form of errors at every path."""
    forms = {e.path: e.errors for e in ENDPOINTS if e.errors is not OPENAI}
    return ErrorForms(forms | {"/api": OLLAMA_CHAT.errors})
