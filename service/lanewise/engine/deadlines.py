"""Which requests have waited or run for too long."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Request = TypeVar("Request")


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
