"""What connections may cost together: unfinished bodies, slow clients, and who was turned away."""

import logging
from collections.abc import Callable
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Gauge

from lanewise.api.errors import ApiError, UnavailableError

logger = logging.getLogger(__name__)

# What a body may have before it counts: ordinary requests are read however full the budget is.
FREE_BODY_BYTES = 64 << 10
SAID_AGAIN_S = 60.0
RETRY_AFTER_S = "5"


class BodyBudget:
    """Bytes of all bodies that have arrived and whose requests are neither admitted nor answered.

    The first FREE_BODY_BYTES of each are not counted.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, n_bytes: int) -> bool:
        """Count more bytes, unless there would be too many."""
        if self.used + n_bytes > self.limit:
            return False
        self.used += n_bytes
        return True


class BodyHold:
    """What one request's body takes from the budget; ``scope["body_hold"]``.

    Who reads the body raises ``refusal()`` once it is set: nothing that comes later is kept.
    """

    __slots__ = ("_budget", "_held", "_received", "refusal")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held = 0
        self._received = 0
        # Makes a new error each time: one that has been raised holds its frames and their bytes.
        self.refusal: Callable[[], ApiError] | None = None

    def take(self, n_bytes: int) -> bool:
        """Count bytes that have arrived; False when they must not be kept."""
        if self.refusal is not None:
            return False
        self._received += n_bytes
        more = self._received - FREE_BODY_BYTES - self._held
        if more <= 0:
            return True
        if not self._budget.take(more):
            self.refuse(self._no_room)
            return False
        self._held += more
        return True

    def refuse(self, refusal: Callable[[], ApiError]) -> None:
        """Keep nothing more of this body, and tell who reads it why."""
        self.refusal = refusal
        self.release()

    def release(self) -> None:
        """Give back what was taken: the request is admitted, answered or gone."""
        self._budget.used -= self._held
        self._held = 0

    def _no_room(self) -> ApiError:
        return UnavailableError(
            "the bodies of other requests that have yet to be complete take all of"
            f" max_pending_body_bytes = {self._budget.limit}",
            code="too_many_bodies",
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
