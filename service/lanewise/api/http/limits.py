"""What requests may hold together, and who was turned away before an endpoint saw it."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Gauge

from lanewise.api.errors import ApiError, BodyTooLargeError, UnavailableError

logger = logging.getLogger(__name__)

# What a request may hold before it counts: ordinary ones are read however full the budget is.
FREE_BYTES = 64 << 10
DEFAULT_BYTES = 256 << 20  # of all requests, where no settings were made for a machine
SAID_AGAIN_S = 60.0
RETRY_AFTER_S = "5"


class RequestMemory:
    """Bytes of all that requests have brought and had made, but for FREE_BYTES of each."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.lock = threading.Lock()  # texts are read on threads


class Hold:
    """What one request makes the server hold; ``scope["hold"]``.

    Bytes of the body count as they arrive and until it is read, what is made of them from before it
    is made to the end of the answer. The reader of the
    body raises ``refusal()`` once it is set: nothing that comes later is kept.
    """

    __slots__ = ("_body", "_counted", "_is_over", "_kept", "_memory", "n_unsent", "refusal")

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self._body = 0
        self._kept = 0
        self._counted = 0  # of both, in the budget
        self._is_over = False
        self.n_unsent: Callable[[], int] = lambda: 0  # bytes that wait for the client to read
        # Makes a new error each time: one that has been raised holds its frames and their bytes.
        self.refusal: Callable[[], ApiError] | None = None

    def take(self, n_bytes: int) -> bool:
        """Count bytes that have arrived; False when they must not be kept."""
        if self.refusal is not None:
            return False
        self._body += n_bytes
        if not self._count():
            self.refuse(self._no_room)
            return False
        return True

    def keep(self, n_bytes: int) -> None:
        """Count what is about to be made and stays; ApiError if there is no room for it."""
        self._kept += n_bytes
        if not self._count():
            error = self._no_room()
            self._kept -= n_bytes
            raise error

    @contextmanager
    def passing(self, n_bytes: int) -> Iterator[None]:
        """Count what is there during the block alone; ApiError if there is no room for it."""
        self.keep(n_bytes)
        try:
            yield
        finally:
            self._kept -= n_bytes
            self._count()

    def body_is_read(self) -> None:
        """The body is no longer there; what was made of it is."""
        self._body = 0
        self._count()

    def refuse(self, refusal: Callable[[], ApiError]) -> None:
        """Keep nothing more of this body, and tell who reads it why."""
        self.refusal = refusal
        self.release()

    def let_go(self) -> bool:
        """Give back all but bytes of the answer that its client has yet to read; False with any."""
        if n_unsent := self.n_unsent():
            self._body, self._kept = 0, min(self._body + self._kept, n_unsent)
            self._count()
        else:
            self.release()
        return not n_unsent

    def release(self) -> None:
        """Give back all: the request is answered or gone, whatever a thread may still make."""
        self._is_over = True
        self._count()

    def _count(self) -> bool:
        memory = self._memory
        with memory.lock:
            counts = 0 if self._is_over else max(0, self._body + self._kept - FREE_BYTES)
            more = counts - self._counted
            if more > 0 and memory.used + more > memory.limit:
                return False
            memory.used += more
            self._counted = counts
            return True

    def _no_room(self) -> ApiError:
        most, needed = self._memory.limit, self._body + self._kept
        if needed - FREE_BYTES > most:
            return BodyTooLargeError(
                f"the request takes {needed} bytes of memory or more; accepted: at most {most}"
                " (request_memory)"
            )
        return UnavailableError(
            f"other requests take all of request_memory = {most} bytes",
            code="too_much_memory",
            headers={"retry-after": RETRY_AFTER_S},
        )


class Refusals:
    """Counts what was turned away before any endpoint saw it, and says so now and then."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counter = Counter(
            "lanewise_http_refused",
            "Connections and requests turned away before an endpoint saw them.",
            ["reason"],
            registry=registry,
        )
        self._said: dict[str, float] = {}

    def count(self, reason: str, message: str) -> None:
        """One more; the log has a line for each reason once a minute."""
        self._counter.labels(reason).inc()
        now = monotonic()
        if now - self._said.get(reason, -SAID_AGAIN_S) >= SAID_AGAIN_S:
            self._said[reason] = now
            logger.warning("a client was turned away (%s): %s", reason, message)


def watch(registry: CollectorRegistry, name: str, text: str, value: Callable[[], float]) -> None:
    """A gauge that is read when somebody asks for it."""
    Gauge(name, text, registry=registry).set_function(value)
