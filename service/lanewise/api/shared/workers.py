"""Threads for work on texts, which would hold up everybody if the event loop did it."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.responses import Response

T = TypeVar("T")

# Below this many characters, tokens or numbers work takes less time than handing it to a thread.
INLINE_SIZE = 2048
# Tokenizing as many characters takes 20 ms.
SHORT_SIZE = 1 << 16
# Tokenizing as many takes 50 MiB, which the allocator keeps when they are free again.
LARGE_SIZE = 1 << 19


def started(n_threads: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads are all there: later the system may refuse them."""
    pool = ThreadPoolExecutor(n_threads, thread_name_prefix=name)
    met = threading.Barrier(n_threads)  # no thread is free for another's turn before all are there
    try:
        for _ in range(n_threads):
            pool.submit(met.wait)
    except BaseException:
        met.abort()
        raise
    return pool


class Workers:
    """Long work waits for other long work alone: it must not hold up anybody else's prompt."""

    def __init__(
        self,
        give_back_memory: Callable[[], None] = lambda: None,
        inline_size: int = INLINE_SIZE,
    ) -> None:
        """``inline_size`` is 0 where short work may take long too."""
        self._inline_size = inline_size
        self._give_back_memory = give_back_memory  # what is free, to the system
        self._texts = started(2, "lanewise-text")
        self._long_texts = started(1, "lanewise-long-text")
        self._answers = started(1, "lanewise-answer")

    async def read(self, size: int, work: Callable[[], T]) -> T:
        """Do work on what came in, which takes time in proportion to ``size``."""
        pool = self._texts if size <= SHORT_SIZE else self._long_texts
        return await self._beside(pool, size, work)

    async def write(self, size: int, work: Callable[[], T]) -> T:
        """The same for what goes out: it waits for no prompt."""
        return await self._beside(self._answers, size, work)

    async def answer(self, size: int, make: Callable[[], str]) -> Response:
        """An answer of JSON, which is made as ``write`` does it."""
        body = await self.write(size, lambda: make().encode())
        return Response(body, media_type="application/json")

    def close(self) -> None:
        """Begin no more work; what runs is not waited for."""
        for pool in (self._texts, self._long_texts, self._answers):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _beside(self, pool: ThreadPoolExecutor, size: int, work: Callable[[], T]) -> T:
        if size <= self._inline_size:
            return work()
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        finally:
            if size > LARGE_SIZE:
                pool.submit(self._give_back_memory)
