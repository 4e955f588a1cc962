"""What OpenAI's API and other servers have and this server has not: why not, and what to do."""

from collections.abc import Callable
from typing import NamedTuple

from lanewise.api.endpoints.ollama_models import size_word
from lanewise.api.errors import NotSupportedError
from lanewise.api.shared.state import ServerState
from lanewise.text.pooled_text import PooledText

MODEL = "{model}"  # becomes what the model is


class Absent(NamedTuple):
    """Some paths, and all below them."""

    why: str
    instead: str
    paths: tuple[str, ...]
    # Whether there is an answer after all: of what is said of a model that is pooled, or of none.
    has: Callable[[PooledText | None], bool] = lambda _: False

    @property
    def reason(self) -> str:
        """Both, in one sentence."""
        return f"{self.why}; accepted: {self.instead}"


NO_VECTORS = Absent(
    f"{MODEL} writes text and gives no vectors",
    "an embedding model, on a server that runs one",
    ("/v1/embeddings",),
    lambda pooled: pooled is not None and not pooled.labels and pooled.compared is None,
)
NO_ROWS = Absent(
    NO_VECTORS.why,
    NO_VECTORS.instead,
    ("/pooling",),
    lambda pooled: pooled is not None and not pooled.labels,
)
NO_RANKING = Absent(
    f"{MODEL} writes text and ranks no documents",
    "a reranker, on a server that runs one",
    ("/v1/rerank", "/v2/rerank", "/v1/reranking"),
    lambda pooled: pooled is not None and len(pooled.labels) < 2,
)
# A model that writes text scores what may follow a prompt, and classifies by labels.
NO_SCORES = Absent(
    NO_RANKING.why,
    NO_RANKING.instead,
    ("/v1/score",),
    lambda pooled: pooled is None or len(pooled.labels) < 2,
)
NO_CLASSES = Absent(
    NO_RANKING.why,
    NO_RANKING.instead,
    ("/v1/classify",),
    lambda pooled: pooled is None or bool(pooled.labels),
)
# What only some models lack that are pooled.
BY_KIND = (NO_VECTORS, NO_ROWS, NO_RANKING, NO_SCORES, NO_CLASSES)
# What any model lacks that is not pooled.
NOT_POOLED = Absent(
    f"{MODEL} writes text",
    "/v1/models, or /props, which say what it is",
    ("/info",),
    lambda pooled: pooled is not None,
)
# What a model that is pooled lacks.
NO_TEXT = Absent(
    f"{MODEL} cannot generate: it makes vectors, scores or classes of texts",
    "/v1/embeddings, /v1/rerank or /v1/classify, as /v1/models says; a chat model on a server of"
    " its own",
    (),
    lambda pooled: pooled is None,
)
EMBEDS = "{model} makes vectors of texts; accepted: /v1/embeddings, /v1/rerank and /v1/score"
COMPARES = "{model} makes vectors of tokens; accepted: /pooling, /v1/rerank and /v1/score"
RANKS = "{model} scores pairs of texts; accepted: /v1/rerank, /v1/score and /v1/classify"
CLASSIFIES = "{model} names the classes of texts; accepted: /v1/classify"
# What is said where there is no directory for it.
NOTHING_KEPT = (
    "this server was started without --data-dir DIR; accepted: with one, where files and batches"
    " and what keys use are kept"
)
# What every model lacks.
NEVER = (
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
        "this server keeps files whole",
        "/v1/files, on a server with --data-dir; for a conversation their text, in messages",
        ("/v1/uploads", "/v1/vector_stores", "/v1/containers"),
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
ABSENT = (*BY_KIND, *NEVER)
AT = {path: absent for absent in ABSENT for path in absent.paths}


def absent_at(path: str) -> Absent | None:
    """What there is to say of a path, or of one above it."""
    while path and path not in AT:
        path = path.rpartition("/")[0]
    return AT.get(path)


def reason_of(absent: Absent, state: ServerState) -> str:
    """Why, and what to ask instead, of this model."""
    pooled = state.pooling
    if pooled is None or absent not in BY_KIND:
        return absent.reason
    if not pooled.labels:
        return EMBEDS if pooled.compared is None else COMPARES
    return RANKS if pooled.ranks else CLASSIFIES


def tasks(pooled: PooledText) -> list[str]:
    """What a model that is pooled is for, in vLLM's words."""
    if pooled.compared is not None:
        return ["token_embed", "score"]
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
