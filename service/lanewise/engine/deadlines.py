"""Which requests have waited or run for too long."""

from collections import deque
from collections.abc import Callable, Iterator

from lanewise.engine.tracking import JobGroup


class Deadlines:
    """A limit of time after arrival that is the same for all requests; 0 is no limit."""

    def __init__(self, limit_s: float, is_over: Callable[[JobGroup], bool]) -> None:
        self.limit_s = limit_s
        self._is_over = is_over  # whether a request need not be looked after any more
        self._groups: deque[tuple[float, JobGroup]] = deque()  # by arrival

    def add(self, group: JobGroup, arrived: float) -> None:
        """Look after a request that arrived after all others."""
        if self.limit_s:
            self._groups.append((arrived, group))

    def missed(self, now: float) -> Iterator[JobGroup]:
        """The requests that should have been over by now, each once."""
        while self._groups:
            arrived, group = self._groups[0]
            is_over = self._is_over(group)
            if not is_over and now - arrived < self.limit_s:
                return
            self._groups.popleft()
            if not is_over:
                yield group
