"""Which requests have waited or run for too long."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from lanewise.engine.admission import Admission
from lanewise.engine.metrics import Metrics
from lanewise.engine.stream import EngineError, QueueTimeoutError, TimeLimitError


class Timed(Protocol):
    """What is known of a request."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs or waits any more."""

    @property
    def has_started(self) -> bool:
        """Whether it has waited long enough to be run."""


Request = TypeVar("Request", bound=Timed)


class Deadlines(Generic[Request]):
    """A limit of time after arrival that is the same for all requests; 0 is no limit."""

    def __init__(self, limit_s: float, is_over: Callable[[Request], bool]) -> None:
        self.limit_s = limit_s
        self._is_over = is_over  # whether a request need not be looked after any more
        self._requests: deque[tuple[float, Request]] = deque()  # by arrival

    def add(self, request: Request, arrived: float) -> None:
        """Look after a request that arrived after all others."""
        if self.limit_s:
            self._requests.append((arrived, request))

    def missed(self, now: float) -> Iterator[Request]:
        """The requests that should have been over by now, each once."""
        while self._requests:
            arrived, request = self._requests[0]
            is_over = self._is_over(request)
            if not is_over and now - arrived < self.limit_s:
                return
            self._requests.popleft()
            if not is_over:
                yield request


class TimeLimits(Generic[Request]):
    """How long an engine's requests may wait, and how long they may take in all; 0 is no limit."""

    def __init__(
        self, queue_s: float, request_s: float, admission: Admission, metrics: Metrics
    ) -> None:
        self._in_queue = Deadlines[Request](
            queue_s, lambda request: request.is_over or request.has_started
        )
        self._in_work = Deadlines[Request](request_s, lambda request: request.is_over)
        self._admission = admission
        self._rejected = metrics.rejected

    def add(self, request: Request, arrived: float) -> None:
        """Look after a request that arrived after all others."""
        self._in_queue.add(request, arrived)
        self._in_work.add(request, arrived)

    def late(self, now: float) -> Iterator[tuple[Request, EngineError]]:
        """The requests that have waited or run for longer than they may, and what to say of it.

        Each is to be ended before the next is asked for.
        """
        for request in self._in_queue.missed(now):
            self._rejected["queue_timeout"].inc()
            message = f"the request has waited for {self._in_queue.limit_s:g} s, which is the limit"
            yield request, QueueTimeoutError(message, self._admission.retry_after_s())
        for request in self._in_work.missed(now):
            self._rejected["time_limit"].inc()
            message = f"the request has taken {self._in_work.limit_s:g} s, which is the limit"
            yield request, TimeLimitError(message)
