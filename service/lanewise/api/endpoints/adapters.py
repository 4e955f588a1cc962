"""``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``: adapters come and go, as with vLLM."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from lanewise.api.errors import BadRequestError, ForbiddenError, ModelNotFoundError
from lanewise.api.generation.body import read_request
from lanewise.api.observing.caller import caller_of
from lanewise.api.schemas import LoadAdapterRequest, UnloadAdapterRequest
from lanewise.api.shared.state import ServerState
from lanewise.engine.base.adapters import (
    AdapterError,
    AdapterFileError,
    Adapters,
    LoadedAdapter,
    UnknownAdapterError,
)

logger = logging.getLogger(__name__)

Locate = Callable[[str], Path | None]

NOT_THERE = (
    "lora_path: there is no adapter that requests may load; accepted: a directory under the"
    " server's lora_root, with adapter_config.json and adapter_model.safetensors"
)
NOT_USABLE = "lora_path: this adapter cannot be used with this model; the server's log says why"


async def load_adapter(request: Request, state: ServerState) -> Response:
    """Load an adapter from a directory under ``lora_root`` and offer it under a name."""
    adapters, locate = _changeable(request, state)
    body = (await read_request(request, state, LoadAdapterRequest)).ask
    if body.lora_name in state.names:
        raise BadRequestError(
            f"lora_name: {body.lora_name!r} is a name of the served model; accepted: any but"
            f" {', '.join(state.names)}",
            param="lora_name",
        )

    def load() -> LoadedAdapter | None:
        path = locate(body.lora_path)
        return None if path is None else adapters.load(body.lora_name, str(path))

    try:
        loaded = await asyncio.to_thread(load)
    except AdapterFileError as error:
        # The reason quotes from the files, which are not for every eye.
        logger.warning("adapter %s: %s", body.lora_name, error)
        raise BadRequestError(NOT_USABLE, param="lora_path") from error
    except AdapterError as error:
        raise BadRequestError(str(error), param="lora_path") from error
    if loaded is None:
        raise BadRequestError(NOT_THERE, param="lora_path")
    logger.info("adapter %s loaded from %s", loaded.name, loaded.path)
    return PlainTextResponse(f"Success: LoRA adapter '{loaded.name}' added successfully.")


async def unload_adapter(request: Request, state: ServerState) -> Response:
    """Offer an adapter no more; requests that use it go on, and its memory is freed after them."""
    adapters, _ = _changeable(request, state)
    body = (await read_request(request, state, UnloadAdapterRequest)).ask
    try:
        adapters.unload(body.lora_name)
    except UnknownAdapterError as error:
        raise ModelNotFoundError(str(error), param="lora_name") from error
    logger.info("adapter %s unloaded", body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _changeable(request: Request, state: ServerState) -> tuple[Adapters, Locate]:
    if state.adapters is None or state.locate_adapter is None:
        raise ForbiddenError(
            "adapters cannot be loaded while the server runs: it was started without"
            " --allow-runtime-lora"
        )
    if not caller_of(request.scope).is_admin:
        raise ForbiddenError("only an administrator's key (admin_api_key) may change adapters")
    return state.adapters, state.locate_adapter
