"""The first request, the server's own; it is ready for others when that has been answered."""

import asyncio
import logging
import time

import numpy as np

from lanewise.api.shared.state import Phase, ServerState
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.stream import EngineError
from lanewise.engine.scheduling.text_queue import EncodingRequest
from lanewise.text.tokenizing_error import TokenizingError

logger = logging.getLogger(__name__)

WARM_UP_TOKENS = 1  # each more is one more pass over the weights before the first answer
TRY_AGAIN_S = 1.0  # between requests of its own: anybody may ask whether the server is ready


def begin(state: ServerState) -> "asyncio.Task[None]":
    """The task of the first request, which is started unless it was before."""
    if state.warming is None:
        state.warming = asyncio.create_task(_warm_up(state))
    return state.warming


def try_again(state: ServerState) -> None:
    """Try what has failed, unless that goes on already: a success says that all is well."""
    if not (state.engine.failures.reason or state.sandbox.shortage.reason):
        return
    now = time.monotonic()
    if now - state.tried_again < TRY_AGAIN_S:
        return
    if state.warming is None or state.warming.done():
        state.tried_again = now
        state.warming = asyncio.create_task(_try_again(state))


async def _warm_up(state: ServerState) -> None:
    """Send the model a request as clients do, through every layer; then the server is ready.

    One that is ready before has a request of a client that waits for it.
    """
    if state.phase is not Phase.WARMING_UP:
        return
    began = time.monotonic()
    try:
        await _ask(state)
    except (EngineError, TokenizingError) as error:
        state.failure = f"the warm-up request failed: {error}"
        logger.error("%s", state.failure)
        return
    state.engine.metrics.warm_up_seconds.set(time.monotonic() - began)
    if state.phase is Phase.WARMING_UP:
        state.phase = Phase.READY
        logger.info("ready")


async def _try_again(state: ServerState) -> None:
    if state.sandbox.shortage.reason:
        await state.sandbox.try_again()
    if not state.engine.failures.reason:
        return
    try:
        await _ask(state)
    except (EngineError, TokenizingError) as error:
        logger.warning("the server's own request failed: %s", error)


async def _ask(state: ServerState) -> None:
    if state.pooling is not None:
        (text,) = state.pooling.whole.encode(["Hello"], state.max_model_len, "right")
        ids = text.ids if len(text.ids) else np.zeros(1, np.uint32)
        pooling = None if state.pooling.compared is None else "none"
        await state.encoder.encode(EncodingRequest([ids], pooling=pooling), is_counted=False)
        return
    prompt = state.tokenizer.encode("Hello", add_bos=True, parse_special=False)
    prompt = prompt[: max(1, state.max_model_len - WARM_UP_TOKENS)]
    max_tokens = min(WARM_UP_TOKENS, state.max_model_len - len(prompt))
    params = SamplingParams(seed=0, max_tokens=max_tokens, temperature=0.0)
    async with state.generator.submit(
        [GenerationRequest(prompt, params)], is_counted=False
    ) as stream:
        async for _ in stream:
            pass
