"""``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``: adapters come and go, as with vLLM."""

import asyncio
import logging

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from lanewise.api.body import read_request
from lanewise.api.errors import BadRequestError, ForbiddenError, ModelNotFoundError
from lanewise.api.schemas import LoadAdapterRequest, UnloadAdapterRequest
from lanewise.api.state import ServerState
from lanewise.engine.adapters import AdapterError, Adapters, UnknownAdapterError

logger = logging.getLogger(__name__)


async def load_adapter(request: Request, state: ServerState) -> Response:
    """Load an adapter from a directory of this machine and offer it under a name."""
    adapters = _changeable(state)
    body = await read_request(request, state, LoadAdapterRequest)
    if body.lora_name == state.model_name:
        raise BadRequestError(
            f"lora_name: {body.lora_name!r} is the name of the served model", param="lora_name"
        )
    try:
        loaded = await asyncio.to_thread(adapters.load, body.lora_name, body.lora_path)
    except AdapterError as error:
        raise BadRequestError(str(error), param="lora_path") from error
    logger.info("adapter %s loaded from %s", loaded.name, loaded.path)
    return PlainTextResponse(f"Success: LoRA adapter '{loaded.name}' added successfully.")


async def unload_adapter(request: Request, state: ServerState) -> Response:
    """Offer an adapter no more; requests that use it go on, and its memory is freed after them."""
    adapters = _changeable(state)
    body = await read_request(request, state, UnloadAdapterRequest)
    try:
        adapters.unload(body.lora_name)
    except UnknownAdapterError as error:
        raise ModelNotFoundError(str(error), param="lora_name") from error
    logger.info("adapter %s unloaded", body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _changeable(state: ServerState) -> Adapters:
    if state.adapters is None or not state.runtime_adapters:
        raise ForbiddenError(
            "adapters cannot be loaded while the server runs: it was started without"
            " --allow-runtime-lora"
        )
    return state.adapters
