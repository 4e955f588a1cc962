"""The event loop's side of a request: tokens arrive here from the engine's thread."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from lanewise.runtime import Sampled

# Sampled is part of what a stream yields, so readers need not import the runtime.
__all__ = [
    "EngineError",
    "EngineStoppedError",
    "Moments",
    "NoTokenError",
    "QueueFullError",
    "QueueTimeoutError",
    "RequestStream",
    "Sampled",
    "TimeLimitError",
    "TokenOutput",
]


class EngineError(Exception):
    """The engine could not finish a request; the message may be sent to the client."""


class QueueFullError(EngineError):
    """Too many requests are waiting."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueTimeoutError(EngineError):
    """A request has waited longer than ``queue_timeout`` allows."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TimeLimitError(EngineError):
    """A request has taken longer than the time limit allows."""


class NoTokenError(EngineError):
    """A request's fields leave no token that may come next."""


class EngineStoppedError(EngineError):
    """The engine takes no more requests."""


@dataclass(slots=True)
class TokenOutput:
    """One token of a request's sequence, its end, or both."""

    index: int  # which sequence of the request
    sampled: Sampled | None  # None only when no token was asked for
    finish_reason: str | None = None  # stop or length, with the last output of a sequence
    cached_tokens: int = 0  # prompt tokens found in the cache
    prompt_scores: Sequence[Sampled] = ()  # with the first output
    ends_complete: bool = False  # stopped because nothing may follow; the token is part of the text


@dataclass(slots=True)
class Moments:
    """When a request's first sequence reached each stage, by ``time.monotonic``; None: not yet."""

    arrived: float
    started: float | None = None
    first_token: float | None = None
    # Prompt tokens, of the sequence that ran last: found in the cache, and computed so far.
    n_reused: int = 0
    n_read: int = 0


class RequestStream:
    """Yields lists of the outputs that have come since the last; ends when every sequence has."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        n_sequences: int,
        on_stop: Callable[[int], None],
        on_cancel: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.moments = Moments(time.monotonic())
        self._live = set(range(n_sequences))
        self._pending: list[TokenOutput] = []
        self._error: EngineError | None = None
        self._cancelled = False
        self._waiter: asyncio.Future[None] | None = None  # set while the reader waits
        self._on_stop = on_stop
        self._on_cancel = on_cancel

    @property
    def cancelled(self) -> bool:
        """Whether the request was cancelled before its end."""
        return self._cancelled

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[TokenOutput]:
        while not self._pending:
            if self._error is not None:
                raise self._error
            if not self._live:
                raise StopAsyncIteration
            self._waiter = self.loop.create_future()
            await self._waiter
        outputs, self._pending = self._pending, []
        for output in outputs:
            if output.finish_reason is not None:
                self._live.discard(output.index)
        return outputs

    def stop(self, index: int) -> None:
        """End one sequence as finished: its text has a stop string."""
        if index in self._live:
            self._live.discard(index)
            self._pending = [output for output in self._pending if output.index != index]
            self._on_stop(index)

    def cancel(self) -> None:
        """Cancel the request: the iteration ends, and its blocks are free within one step."""
        if self._live and self._error is None:
            self._cancelled = True
            self._live.clear()
            self._pending.clear()
            self._on_cancel()
            self._wake()

    def deliver(self, outputs: Sequence[TokenOutput]) -> None:
        """Add one sequence's outputs of a step; called on the event loop."""
        if outputs[0].index in self._live:
            self._pending += outputs
            self._wake()

    def fail(self, error: EngineError) -> None:
        """End with an error after the outputs delivered so far; called on the event loop."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
