"""What OpenAI's API and other servers have and this server has not: why not, and what to do."""

from typing import NamedTuple

from lanewise.api.endpoints.ollama_models import size_word
from lanewise.api.errors import NotSupportedError
from lanewise.api.shared.state import ServerState

MODEL = "{model}"  # becomes what the model is


class Absent(NamedTuple):
    """Some paths, and all below them."""

    why: str
    instead: str
    paths: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Both, in one sentence."""
        return f"{self.why}; accepted: {self.instead}"


NO_VECTORS = Absent(
    f"{MODEL} writes text and gives no vectors",
    "an embedding model, on a server that runs one",
    ("/v1/embeddings", "/pooling"),
)
NO_RANKING = Absent(
    f"{MODEL} writes text and ranks no documents",
    "a reranker, on a server that runs one",
    ("/v1/rerank", "/v2/rerank", "/v1/reranking", "/v1/score"),
)
NO_CLASSES = Absent(
    f"{MODEL} writes text and is no classifier",
    'the classes as structured_outputs {"choice": […]} of /v1/chat/completions, whose answer is'
    " one of them",
    ("/classify",),
)
# What any model lacks that is not pooled.
NOT_POOLED = Absent(
    f"{MODEL} writes text", "/v1/models, or /props, which say what it is", ("/info",)
)
# What a model that is pooled lacks.
NO_TEXT = Absent(
    f"{MODEL} cannot generate: it makes vectors, scores or classes of texts",
    "/v1/embeddings, /v1/rerank or /classify, as /v1/models says; a chat model on a server of its"
    " own",
    (),
)
EMBEDS = "{model} makes vectors of texts; accepted: /v1/embeddings, /v1/rerank and /v1/score"
RANKS = "{model} scores pairs of texts; accepted: /v1/rerank, /v1/score and /classify"
CLASSIFIES = "{model} names the classes of texts; accepted: /classify"
ABSENT = (
    NO_VECTORS,
    NO_RANKING,
    NO_CLASSES,
    Absent(
        "judging texts is for a model that was trained for it",
        "/v1/chat/completions of a server that runs a guard model",
        ("/v1/moderations",),
    ),
    Absent(
        f"{MODEL} writes text and makes no pictures",
        "a model that does, on a server that runs one",
        ("/v1/images", "/v1/videos"),
    ),
    Absent(
        f"{MODEL} reads and writes text and neither hears nor speaks",
        "text, at /v1/chat/completions or /v1/responses, which stream",
        ("/v1/audio", "/v1/realtime"),
    ),
    Absent(
        "this server keeps no files",
        "their text, in messages",
        ("/v1/files", "/v1/uploads", "/v1/vector_stores", "/v1/containers"),
    ),
    Absent(
        "this server answers while the client waits",
        "the requests themselves, many at once: they are computed together, and those with a higher"
        " number as priority after others",
        ("/v1/batches",),
    ),
    Absent(
        "this server trains and rates no models",
        "LoRA adapters that were trained elsewhere, with --lora",
        ("/v1/fine_tuning", "/v1/evals"),
    ),
    Absent(
        "this server keeps responses and nothing else of a conversation",
        "/v1/responses with previous_response_id, or all messages at /v1/chat/completions",
        ("/v1/assistants", "/v1/threads", "/v1/conversations"),
    ),
)
AT = {path: absent for absent in ABSENT for path in absent.paths}


def absent_at(path: str) -> Absent | None:
    """What there is to say of a path, or of one above it."""
    while path and path not in AT:
        path = path.rpartition("/")[0]
    return AT.get(path)


def lacks(absent: Absent, state: ServerState) -> bool:
    """Whether there is no answer at such paths, the model being what it is."""
    pooled = state.pooling
    if absent in (NO_TEXT, NOT_POOLED):
        return (pooled is not None) == (absent is NO_TEXT)
    if pooled is None or absent not in (NO_VECTORS, NO_RANKING, NO_CLASSES):
        return True
    has = {
        NO_VECTORS: not pooled.labels,
        NO_RANKING: len(pooled.labels) < 2,
        NO_CLASSES: bool(pooled.labels),
    }
    return not has[absent]


def reason_of(absent: Absent, state: ServerState) -> str:
    """Why, and what to ask instead, of this model."""
    pooled = state.pooling
    if pooled is None or absent not in (NO_VECTORS, NO_RANKING, NO_CLASSES):
        return absent.reason
    if not pooled.labels:
        return EMBEDS
    return RANKS if pooled.ranks else CLASSIFIES


def tasks(state: ServerState) -> list[str]:
    """What the model is for, in vLLM's words."""
    pooled = state.pooling
    if pooled is None:
        return ["generate"]
    if not pooled.labels:
        return ["embed", "token_embed", "score"]
    return ["classify", "score"] if pooled.ranks else ["classify"]


def refusal_of(path: str, reason: str, state: ServerState) -> NotSupportedError:
    """Why there is no answer at a path."""
    card = state.card
    size = f", {size_word(card.n_weights)} weights" if card.n_weights else ""
    reason = reason.replace(MODEL, f"{state.model_name!r} ({card.architecture}{size})")
    # OpenAI's clients ask again after any 5xx, unless they are told not to.
    return NotSupportedError(
        f"{path} is not supported: {reason}", headers={"x-should-retry": "false"}
    )
