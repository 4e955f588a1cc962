"""Which requests have waited or run for too long."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from lanewise.engine.base.stream import EngineError, QueueTimeoutError, TimeLimitError
from lanewise.engine.metering.metrics import Metrics
from lanewise.engine.scheduling.admission import Admission


class Timed(Protocol):
    """A request, as far as time limits need it."""

    @property
    def is_over(self) -> bool:
        """Whether all of its sequences have ended."""

    @property
    def has_started(self) -> bool:
        """Whether it has begun to run, so that the queue's limit no longer applies."""


Request = TypeVar("Request", bound=Timed)


class Deadlines(Generic[Request]):
    """One time limit for all requests, counted from arrival; 0 is no limit."""

    def __init__(self, limit_s: float, is_over: Callable[[Request], bool]) -> None:
        self.limit_s = limit_s
        self._is_over = is_over  # whether a request needs no watching any more
        self._requests: deque[tuple[float, Request]] = deque()  # in order of arrival

    def add(self, request: Request, arrived: float) -> None:
        """Watch a request; it must have arrived after all earlier ones."""
        if self.limit_s:
            self._requests.append((arrived, request))

    def missed(self, now: float) -> Iterator[Request]:
        """The requests that have exceeded the limit, each once."""
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
        """Watch a request; it must have arrived after all earlier ones."""
        self._in_queue.add(request, arrived)
        self._in_work.add(request, arrived)

    def late(self, now: float) -> Iterator[tuple[Request, EngineError]]:
        """The requests that have waited or run too long, each with its error.

        The caller ends each request before it asks for the next.
        """
        for request in self._in_queue.missed(now):
            self._rejected["queue_timeout"].inc()
            message = f"the request has waited for {self._in_queue.limit_s:g} s, which is the limit"
            yield request, QueueTimeoutError(message, self._admission.retry_after_s())
        for request in self._in_work.missed(now):
            self._rejected["time_limit"].inc()
            message = f"the request has taken {self._in_work.limit_s:g} s, which is the limit"
            yield request, TimeLimitError(message)
