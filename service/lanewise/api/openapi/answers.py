"""What each endpoint answers, and which errors it may."""

from typing import NamedTuple

from lanewise.api.http.refusals import PROBED
from lanewise.api.openapi import openai_answers as openai
from lanewise.api.openapi import other_answers as other
from lanewise.api.openapi import pooled_answers as pooled
from lanewise.api.openapi.shapes import TEXT, Schema, either

JSON, SSE, NDJSON = "application/json", "text/event-stream", "application/x-ndjson"
DONE = "[DONE]"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"


class Answer(NamedTuple):
    """A schema of the whole answer, and of an event or line where it can be streamed."""

    whole: Schema | None
    streamed: Schema | None = None
    stream_type: str = SSE
    stream_end: str | None = None  # the last event's data
    whole_type: str = JSON


ANSWERS: dict[tuple[str, str], Answer] = {
    ("POST", "/v1/chat/completions"): Answer(openai.CHAT, openai.CHAT_CHUNK, stream_end=DONE),
    ("POST", "/v1/completions"): Answer(
        openai.COMPLETION, openai.COMPLETION_CHUNK, stream_end=DONE
    ),
    ("POST", "/v1/responses"): Answer(openai.RESPONSE, openai.RESPONSE_EVENT),
    ("POST", "/v1/responses/compact"): Answer(openai.COMPACTED),
    ("POST", "/v1/responses/input_tokens"): Answer(openai.INPUT_TOKENS),
    ("GET", "/v1/responses/{response_id}"): Answer(openai.RESPONSE, openai.RESPONSE_EVENT),
    ("DELETE", "/v1/responses/{response_id}"): Answer(openai.DELETED),
    ("GET", "/v1/responses/{response_id}/input_items"): Answer(openai.ITEM_LIST),
    ("POST", "/v1/messages"): Answer(other.MESSAGE, other.MESSAGE_EVENT),
    ("POST", "/v1/messages/count_tokens"): Answer(other.MESSAGE_TOKENS),
    ("POST", "/v1/embeddings"): Answer(pooled.EMBEDDINGS),
    ("POST", "/pooling"): Answer(pooled.POOLED),
    ("POST", "/v1/rerank"): Answer(pooled.RANKED),
    ("POST", "/v2/rerank"): Answer(pooled.RANKED),
    ("POST", "/v1/reranking"): Answer(pooled.RANKED),
    ("POST", "/v1/score"): Answer(pooled.SCORES),
    ("POST", "/classify"): Answer(pooled.CLASSES),
    ("POST", "/embed"): Answer(pooled.VECTORS),
    ("GET", "/info"): Answer(pooled.INFO),
    ("POST", "/api/embed"): Answer(pooled.OLLAMA_VECTORS),
    ("POST", "/api/embeddings"): Answer(pooled.OLLAMA_VECTOR),
    ("POST", "/embedding"): Answer(pooled.LLAMA_VECTORS),
    ("POST", "/tokenize"): Answer(openai.TOKENS),
    ("POST", "/detokenize"): Answer(openai.DETOKENIZED),
    ("GET", "/v1/models"): Answer(either(openai.MODELS, other.MODELS_OF_ANTHROPIC)),
    ("GET", "/api/v0/models"): Answer(openai.MODELS_OF_LM_STUDIO),
    ("GET", "/v1/models/{name}"): Answer(either(openai.MODEL, other.MODEL_OF_ANTHROPIC)),
    ("POST", "/v1/load_lora_adapter"): Answer(TEXT, whole_type="text/plain; charset=utf-8"),
    ("POST", "/v1/unload_lora_adapter"): Answer(TEXT, whole_type="text/plain; charset=utf-8"),
    ("GET", "/tokenizer_info"): Answer(openai.TOKENIZER),
    ("POST", "/api/chat"): Answer(other.OLLAMA_CHAT, other.OLLAMA_CHAT, NDJSON),
    ("POST", "/api/generate"): Answer(other.OLLAMA_GENERATE, other.OLLAMA_GENERATE, NDJSON),
    ("GET", "/api/tags"): Answer(other.OLLAMA_MODELS),
    ("GET", "/api/ps"): Answer(other.OLLAMA_MODELS),
    ("POST", "/api/show"): Answer(other.OLLAMA_MODEL),
    ("GET", "/api/version"): Answer(openai.VERSION),
    ("POST", "/api/pull"): Answer(other.OLLAMA_STATUS, other.OLLAMA_STATUS, NDJSON),
    ("POST", "/completion"): Answer(other.LLAMA_COMPLETIONS, other.LLAMA_COMPLETION),
    ("POST", "/infill"): Answer(other.LLAMA_COMPLETIONS, other.LLAMA_COMPLETION),
    ("GET", "/props"): Answer(other.PROPS),
    ("GET", "/slots"): Answer(other.SLOTS),
    ("POST", "/apply-template"): Answer(other.TEMPLATED),
    ("GET", "/health"): Answer(openai.STATUS),
    ("GET", "/health/live"): Answer(openai.STATUS),
    ("GET", "/health/ready"): Answer(openai.STATUS),
    ("GET", "/v1/health"): Answer(openai.STATUS),
    ("GET", "/ping"): Answer(openai.STATUS),
    ("POST", "/ping"): Answer(openai.STATUS),
    ("POST", "/invocations"): Answer(
        either(openai.CHAT, openai.COMPLETION),
        either(openai.CHAT_CHUNK, openai.COMPLETION_CHUNK),
        stream_end=DONE,
    ),
    ("GET", "/metrics"): Answer(TEXT, whole_type=PLAIN),
    ("GET", "/version"): Answer(openai.VERSION),
}

ERRORS = {
    400: "A field has a value that cannot be used, or that this model or server cannot honour",
    401: "The API key is missing or wrong",
    403: "Not with this key, or on no server that was started like this one",
    404: "There is no such model, response or path",
    408: "The body did not arrive in time",
    409: "It is in use",
    413: "The body is too large",
    415: "The body is compressed, or not JSON",
    429: "The queue is full; see Retry-After",
    500: "The model failed",
    501: "This server does not do that; the message says why",
    503: "The server is shutting down or busy, or the request has waited too long; see Retry-After",
    504: "The request took longer than requests may",
    529: "As 503, in Anthropic's number",
}
HEALTH = tuple(path for path in PROBED if path != "/metrics")
OF_BODIES = (400, 404, 408, 413, 415, 429, 500, 503, 504)
MORE = {
    "/v1/load_lora_adapter": (403, 409),
    "/v1/unload_lora_adapter": (403, 409),
    "/v1/messages": (529,),
    "/v1/messages/count_tokens": (529,),
    "/api/pull": (501,),
    "/v1/models/{name}": (404,),
    "/v1/responses/{response_id}": (400, 404),
    "/v1/responses/{response_id}/input_items": (400, 404),
    "/v1/responses/{response_id}/cancel": (400, 404),
}


def error_schema(path: str) -> tuple[str, Schema]:
    """The name and schema of errors at a path."""
    if path in HEALTH:
        return "Health", openai.STATUS
    if path.startswith("/v1/messages"):
        return "AnthropicError", other.MESSAGE_ERROR
    if path.startswith("/api/"):
        return "OllamaError", other.OLLAMA_ERROR
    if path in ("/completion", "/infill", "/slots", "/apply-template", "/embedding"):
        return "LlamaServerError", other.LLAMA_ERROR
    return "Error", openai.ERROR


def statuses(path: str, *, has_body: bool, is_missing: bool, is_public: bool) -> list[int]:
    """Of the errors that an endpoint may answer with."""
    if path in HEALTH:
        return [503]
    found = set(MORE.get(path, ())) | ({501} if is_missing else set())
    if has_body:
        found |= set(OF_BODIES)
    if not is_public:
        found |= {401, 503}
    return sorted(found)
