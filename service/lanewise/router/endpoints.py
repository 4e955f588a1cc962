"""What the router answers itself: which models there are, how they are, to load and unload one."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from lanewise import __version__
from lanewise.api.endpoints.ollama_models import FOREVER, OLLAMA_VERSION, tagged
from lanewise.api.errors import (
    ApiError,
    BadRequestError,
    ForbiddenError,
    ModelNotFoundError,
    RateLimitExceededError,
    UnavailableError,
)
from lanewise.api.generation.body import read_bytes
from lanewise.api.generation.writing import utc_time
from lanewise.api.observing.caller import caller_of
from lanewise.api.observing.merging import merged
from lanewise.router.exchange import ServerGoneError
from lanewise.router.fleet import BusyError, Fleet
from lanewise.router.naming import named_in
from lanewise.router.process import LoadError
from lanewise.router.slot import Slot

METRICS_S = 5.0  # for a model's server to tell its own
CARD_S = 2.0  # to say what it is
SMALL_BODY = 64 << 10
A_CENTURY_S = 100 * 366 * 86400.0
NOT_LOADED = "model_not_loaded"  # code of an error
SIGN_S = 15.0  # between two signs of life in events
UNBUFFERED = {"cache-control": "no-cache", "x-accel-buffering": "no"}
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Owned:
    """What the endpoints of the router look at."""

    def __init__(self, fleet: Fleet, registry: CollectorRegistry, *, has_keys: bool) -> None:
        self.fleet, self.registry, self.has_keys = fleet, registry, has_keys
        self.is_draining = False
        self.created = int(time.time())
        # The router's own count of requests stands for all: those of the models would be twice.
        self._own = {metric.name for metric in registry.collect()}
        states = Gauge("lanewise_router_models", "Models by state.", ["state"], registry=registry)
        for state in ("loaded", "loading", "unloaded"):
            states.labels(state).set_function(partial(self._count, state))

    def _count(self, state: str) -> int:
        return sum(slot.state == state for slot in self.fleet.slots.values())

    def may_change(self, request: Request) -> bool:
        """Whether the caller may say which models are in memory."""
        return not self.has_keys or caller_of(request.scope).is_admin

    def row(self, slot: Slot, name: str) -> dict[str, Any]:
        """A model as OpenAI's clients read it, and its state as llama.cpp's router says it."""
        of = {"parent": slot.entry.name} if name in slot.entry.adapters else {}
        return {
            "object": "model",
            "created": self.created,
            "owned_by": "lanewise",
            "root": slot.entry.name,
            "parent": None,
            **slot.card,
            **of,
            "id": name,
            "status": {"value": slot.state, **failure_of(slot)},
            "pinned": slot.entry.pinned,
        }

    def rows(self) -> list[dict[str, Any]]:
        """All models by all their names."""
        return [self.row(slot, name) for slot in self.fleet.slots.values() for name in slot.names]

    async def metrics(self) -> str:
        """Metrics of the router and of all models that are loaded, with model_name labels."""
        loaded = {n: slot.child for n, slot in self.fleet.slots.items() if slot.child is not None}

        async def of(name: str) -> tuple[str, str] | None:
            try:
                async with asyncio.timeout(METRICS_S):
                    status, text = await loaded[name].line.read(b"/metrics")
            except (ServerGoneError, TimeoutError):
                return None
            return (name, self._without_own(text.decode())) if status == 200 else None

        told = await asyncio.gather(*map(of, loaded))
        texts = dict(one for one in told if one is not None)
        return generate_latest(self.registry).decode() + merged(texts, "model_name")

    def _without_own(self, text: str) -> str:
        kept, is_kept = [], True
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                is_kept = family.removesuffix("_total").removesuffix("_created") not in self._own
            if is_kept:
                kept.append(line)
        return "\n".join(kept)


def failure_of(slot: Slot) -> dict[str, Any]:
    """Why a model is not there, if it failed, in the words of llama.cpp's router."""
    if not slot.failure or slot.state != "unloaded":
        return {}
    return {"failed": True, "reason": slot.failure}


async def list_models(owned: Owned, request: Request) -> Response:
    """All models with their states."""
    await _describe(owned)
    if "anthropic-version" not in request.headers:
        return JSONResponse({"object": "list", "data": owned.rows()})
    created = utc_time(owned.created)
    data = [
        {"type": "model", "id": one["id"], "display_name": one["id"], "created_at": created}
        for one in owned.rows()
    ]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
    return JSONResponse({"data": data, "has_more": False, **ends})


async def lm_studio(owned: Owned, _: Request) -> Response:
    """All models, as clients of LM Studio read them; of one not loaded yet its kind is a guess."""
    await _describe(owned)
    data = []
    for slot in owned.fleet.slots.values():
        is_pooled = "embeddings" in str(slot.card.get("architecture"))
        context = slot.card.get("max_model_len", 0)
        same = {
            "object": "model",
            "type": "embeddings" if is_pooled else "llm",
            "publisher": "lanewise",
            "compatibility_type": "gguf",
            "state": "loaded" if slot.state == "loaded" else "not-loaded",
            "max_context_length": context,
        }
        data += [{"id": name, **same} for name in slot.names]
    return JSONResponse({"object": "list", "data": data})


async def get_model(owned: Owned, request: Request) -> Response:
    """One model."""
    await _describe(owned)
    name = request.url.path.removeprefix("/v1/models/")
    for row in owned.rows():
        if row["id"] == name:
            return JSONResponse(row)
    raise ModelNotFoundError.of(name, owned.fleet.names)


async def _describe(owned: Owned) -> None:
    """Have what the servers themselves say of models that have been loaded once."""
    for slot in list(owned.fleet.slots.values()):
        if slot.child is not None and not slot.card:
            try:
                async with asyncio.timeout(CARD_S):
                    status, text = await slot.child.line.read(b"/v1/models")
            except (ServerGoneError, TimeoutError):
                continue
            if status == 200:
                slot.card = json.loads(text)["data"][0]


def busy(error: BusyError) -> ApiError:
    """What a request is told whose model cannot be had now."""
    headers = {"retry-after": str(max(1, round(error.after_s)))}
    kind = RateLimitExceededError if error.is_full else UnavailableError
    return kind(str(error), headers=headers)


async def load(owned: Owned, request: Request) -> Response:
    """Load a model, and answer when it is there."""
    slot = await _asked(owned, request)
    try:
        await owned.fleet.load(slot)
    except BusyError as error:
        raise busy(error) from None
    except LoadError as error:
        raise UnavailableError(f"{slot.entry.name}: {error}", code=NOT_LOADED) from None
    return JSONResponse({"success": True})


async def unload(owned: Owned, request: Request) -> Response:
    """Let a model finish its answers and end."""
    await owned.fleet.unload(await _asked(owned, request))
    return JSONResponse({"success": True})


async def events(owned: Owned, _: Request) -> Response:
    """The state of each model now, and again whenever it is another, as llama.cpp's router does."""
    return StreamingResponse(_events(owned), media_type="text/event-stream", headers=UNBUFFERED)


async def _events(owned: Owned) -> AsyncIterator[str]:
    told: dict[str, dict[str, Any]] = {}
    while not owned.is_draining:
        change = owned.fleet.change
        # What changed twice since is told once: a slow client makes nothing pile up.
        slots = {name: slot for name, slot in owned.fleet.slots.items() if slot.is_known}
        now = {name: {"status": slot.state, **failure_of(slot)} for name, slot in slots.items()}
        for name, data in now.items():
            if told.get(name) != data:
                yield _event({"model": name, "event": "model_status", "data": data})
        for name in told.keys() - now.keys():
            yield _event({"model": name, "event": "model_remove"})
        told = now
        try:
            await asyncio.wait_for(change.wait(), SIGN_S)
        except TimeoutError:
            yield ": keep-alive\n\n"


def _event(content: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


async def _asked(owned: Owned, request: Request) -> Slot:
    if not owned.may_change(request):
        raise ForbiddenError("models are loaded and unloaded with an administrator's key only")
    name = named_in(await read_bytes(request, SMALL_BODY))
    if name is None:
        raise BadRequestError("model is required", param="model")
    try:
        slot = owned.fleet.find(name)
    except BusyError as error:
        raise busy(error) from None
    if slot is None:
        raise ModelNotFoundError.of(name, owned.fleet.names)
    return slot


async def tags(owned: Owned, _: Request) -> Response:
    """All models, in Ollama's words."""
    return JSONResponse({"models": [_listed(owned, name) for name in owned.fleet.names]})


async def in_memory(owned: Owned, _: Request) -> Response:
    """The models that are loaded, in Ollama's words, and when they will go."""
    rows = []
    for slot in owned.fleet.slots.values():
        if slot.state == "loaded":
            more = {"expires_at": _expires(slot), "size_vram": 0}
            rows.append(_listed(owned, slot.entry.name) | more)
    return JSONResponse({"models": rows})


def _expires(slot: Slot) -> str:
    after = slot.goes_after_s
    if after > A_CENTURY_S:
        return FOREVER
    idle = 0.0 if slot.is_busy else max(0.0, time.monotonic() - slot.used_at)
    return utc_time(time.time() + max(0.0, after - idle))


def _listed(owned: Owned, name: str) -> dict[str, Any]:
    slot = owned.fleet.find(name)
    assert slot is not None
    meta = slot.card.get("meta")
    modified = utc_time(owned.created)
    size = meta.get("size", 0) if isinstance(meta, Mapping) else 0
    details = {"format": "gguf", "family": "", "parameter_size": "", "quantization_level": ""}
    same = {"name": tagged(name), "model": tagged(name), "modified_at": modified, "size": size}
    return same | {"details": details}


async def live(_: Owned, __: Request) -> Response:
    """The router runs."""
    return JSONResponse({"status": "ok"})


async def ready(owned: Owned, _: Request) -> Response:
    """Ready when the router is; each model's own state beside it."""
    states = {name: slot.state for name, slot in owned.fleet.slots.items()}
    if owned.is_draining:
        return JSONResponse({"status": "draining", "models": states}, 503)
    return JSONResponse({"status": "ready", "models": states})


async def metrics(owned: Owned, _: Request) -> Response:
    """All metrics, of the router and its models."""
    return Response(await owned.metrics(), media_type=TEXT)


async def version(_: Owned, __: Request) -> Response:
    """The server's version."""
    return JSONResponse({"version": __version__})


async def ollama_version(_: Owned, __: Request) -> Response:
    """The version of Ollama's API."""
    return JSONResponse({"version": OLLAMA_VERSION, "lanewise": __version__})


# /models is another way to write /v1/models. What is below /v1/models is a name.
OWN: dict[tuple[str, str], Callable[[Owned, Request], Awaitable[Response]]] = {
    ("GET", "/v1/models"): list_models,
    ("GET", "/v1/models/sse"): events,
    ("POST", "/v1/models/load"): load,
    ("POST", "/v1/models/unload"): unload,
    ("GET", "/api/v0/models"): lm_studio,
    ("GET", "/api/tags"): tags,
    ("GET", "/api/ps"): in_memory,
    ("GET", "/api/version"): ollama_version,
    ("GET", "/health"): live,
    ("GET", "/health/live"): live,
    ("GET", "/v1/health"): live,
    ("GET", "/health/ready"): ready,
    ("GET", "/ping"): ready,
    ("POST", "/ping"): ready,
    ("GET", "/metrics"): metrics,
    ("GET", "/version"): version,
}
