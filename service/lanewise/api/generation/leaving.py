"""Gives up work for clients that have left before their answer begins."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request

from lanewise.api.errors import ClientGoneError

T = TypeVar("T")

# Most work is done before it is worth looking whether anybody waits for it.
PATIENCE_S = 0.05


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of work for a client; it is cancelled, and ClientGoneError raised, if that leaves.

    The request's body has been read.
    """
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({working}, timeout=PATIENCE_S)
        if working.done():
            return working.result()
        leaving = asyncio.create_task(_left(request))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            with suppress(asyncio.CancelledError):
                await leaving
        if working.done():
            return working.result()
        raise ClientGoneError("the client has left")
    finally:
        working.cancel()  # nothing if it is done
        with suppress(BaseException):
            await working
        del working  # its error refers to this frame


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
