"""Gives up work for clients that have left before their answer begins."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from starlette.types import Receive

from lanewise.api.errors import ClientGoneError

T = TypeVar("T")

# Most work is done before it is worth looking whether anybody waits for it.
PATIENCE_S = 0.05


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Work that goes on while a block runs; behind the block it is cancelled and has ended."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of work for a client; it is cancelled, and ClientGoneError raised, if that leaves.

    The request's body has been read.
    """
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({working}, timeout=PATIENCE_S)
        if working.done():
            return working.result()
        async with beside(_left(receive)) as leaving:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError("the client has left")
    finally:
        working.cancel()  # nothing if it is done
        with suppress(BaseException):
            await working
        del working  # its error refers to this frame


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
