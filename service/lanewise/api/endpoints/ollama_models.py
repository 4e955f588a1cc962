"""What Ollama's clients ask about models: which there are, what they can do, to fetch more."""

import hashlib
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.dialects.ollama_fields import PullRequest, ShowRequest
from lanewise.api.errors import ModelNotFoundError, NotSupportedError
from lanewise.api.generation.body import LATEST, find_adapter, read_request
from lanewise.api.generation.writing import dumps, utc_time
from lanewise.api.shared.state import ServerState
from lanewise.text.answers.families import answer_format

FOREVER = "9999-12-31T23:59:59Z"  # the model stays
# The version of Ollama whose API this is: some clients refuse one below what they need (Codex:
# 0.13.4). The first that has all of what is here; the last was /v1/messages.
OLLAMA_VERSION = "0.14.0"
ELSEWHERE = "this server has the models that it was started with; start it with another instead"


def tagged(name: str) -> str:
    """A model's name as Ollama writes it: with a tag."""
    return name if ":" in name.rsplit("/", 1)[-1] else name + LATEST


async def ollama_tags(_: Request, state: ServerState) -> Response:
    """The models that can be asked for."""
    return JSONResponse({"models": [_listed(name, state) for name in state.model_names]})


async def ollama_ps(_: Request, state: ServerState) -> Response:
    """The same: all are in memory."""
    more = {"expires_at": FOREVER, "size_vram": 0, "context_length": state.max_model_len}
    return JSONResponse({"models": [_listed(name, state) | more for name in state.model_names]})


async def ollama_version(_: Request, state: ServerState) -> Response:
    """The version of Ollama whose API this is."""
    return JSONResponse({"version": OLLAMA_VERSION, "lanewise": state.version})


async def ollama_show(request: Request, state: ServerState) -> Response:
    """What a model is and can do."""
    body = (await read_request(request, state, ShowRequest)).ask
    find_adapter(body.name, state)
    template, card = state.chat_template, state.card
    family = card.architecture
    defaults = state.sampling_defaults.unusual()
    shown = {
        "modified_at": utc_time(state.created),
        "details": _details(state),
        "template": "" if template is None else template.shown or "",
        "parameters": "\n".join(f"{name} {value:g}" for name, value in defaults.items()),
        "capabilities": capabilities(state),
        "model_info": {
            "general.architecture": family,
            "general.parameter_count": card.n_weights,
            f"{family}.context_length": state.max_model_len,
            f"{family}.vocab_size": state.tokenizer.vocab_size,
        },
    }
    return JSONResponse(shown)


def capabilities(state: ServerState) -> list[str]:
    """What the model can do, in Ollama's words."""
    if state.pooling is not None:
        return ["embedding"]
    insert = [] if state.tokenizer.fim is None else ["insert"]
    if state.chat_template is None or state.chat_template.shown is None:
        return ["completion", *insert]
    thinks = answer_format(state.chat_template, tools=False).thinks
    sees = ["vision"] if state.eyes is not None else []
    return ["completion", "tools", *insert, *sees, *(["thinking"] if thinks else [])]


async def ollama_pull(request: Request, state: ServerState) -> Response:
    """Success for a model that is here: scripts fetch what they are about to use."""
    try:
        body = (await read_request(request, state, PullRequest)).ask
        find_adapter(body.name, state)
    except ModelNotFoundError as error:
        raise NotSupportedError(f"{error.message}; start it with another instead") from None
    if not body.stream:
        return JSONResponse({"status": "success"})
    return Response(dumps({"status": "success"}) + "\n", media_type="application/x-ndjson")


def _listed(name: str, state: ServerState) -> dict[str, Any]:
    digest = hashlib.sha256(f"{state.fingerprint}\n{name}".encode()).hexdigest()
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": utc_time(state.created),
        "size": state.card.n_bytes,
        "digest": digest,
        "details": _details(state),
        "capabilities": capabilities(state),
    }


def _details(state: ServerState) -> dict[str, Any]:
    card = state.card
    return {
        "parent_model": "",
        "format": "gguf",
        "family": card.architecture,
        "families": [card.architecture],
        "parameter_size": size_word(card.n_weights),
        "quantization_level": state.engine.metrics.facts.weights.upper(),
    }


def size_word(n_weights: int) -> str:
    """A number of weights as people say it: 135M, 1.5B."""
    if n_weights < 1_000_000:
        return f"{n_weights / 1e3:.0f}K"
    if n_weights < 1_000_000_000:
        return f"{n_weights / 1e6:.1f}M"
    return f"{n_weights / 1e9:.1f}B"
