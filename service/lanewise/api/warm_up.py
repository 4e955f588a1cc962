"""The first request, the server's own; it is ready for others when that has been answered."""

import asyncio
import logging

from lanewise.api.state import Phase, ServerState
from lanewise.engine.sampling import SamplingParams
from lanewise.engine.sequence import GenerationRequest
from lanewise.engine.stream import EngineError

logger = logging.getLogger(__name__)

WARM_UP_TOKENS = 1  # each more is one more pass over the weights before the first answer


def begin(state: ServerState) -> "asyncio.Task[None]":
    """The task of the first request, which is started unless it was before."""
    if state.warming is None:
        state.warming = asyncio.create_task(_warm_up(state))
    return state.warming


async def _warm_up(state: ServerState) -> None:
    """Send the model a request as clients do, through every layer; then the server is ready."""
    prompt = state.tokenizer.encode("Hello", add_bos=True, parse_special=False)
    prompt = prompt[: max(1, state.max_model_len - WARM_UP_TOKENS)]
    max_tokens = min(WARM_UP_TOKENS, state.max_model_len - len(prompt))
    params = SamplingParams(seed=0, max_tokens=max_tokens, temperature=0.0)
    try:
        async with state.engine.submit([GenerationRequest(prompt, params)]) as stream:
            async for _ in stream:
                pass
    except EngineError as error:
        state.failure = f"the warm-up request failed: {error}"
        logger.error("%s", state.failure)
        return
    if state.phase is Phase.WARMING_UP:
        state.phase = Phase.READY
        logger.info("ready")
