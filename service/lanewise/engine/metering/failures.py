"""Whether the model still works: counts sequences that failed one after another."""

import logging

from lanewise.runtime import StepRefusedError

logger = logging.getLogger(__name__)

# A request that no step can run fails alone, and other requests succeed in between. A broken model
# fails all of them.
MAX_FAILURES = 3


class FailureStreak:
    """Counts failures of sequences run alone, with no success between; any thread may read it."""

    def __init__(self) -> None:
        self._count = 0
        self._last = ""

    @property
    def reason(self) -> str | None:
        """Why the model seems broken; None while it works."""
        if self._count < MAX_FAILURES:
            return None
        return f"the last {self._count} sequences failed: {self._last}"

    def note_failure(self, error: Exception) -> None:
        """A sequence failed in a step of its own, not because of its request's fields."""
        if isinstance(error, StepRefusedError):
            return
        self._last = str(error)
        self._count += 1
        if self._count == MAX_FAILURES:
            logger.error("not ready until a step succeeds: %s", self.reason)

    def note_success(self) -> None:
        """A step succeeded."""
        if self._count >= MAX_FAILURES:
            logger.warning("steps succeed again, after %d sequences that failed", self._count)
        self._count = 0
