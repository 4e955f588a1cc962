"""Whether the model still answers at all: sequences that failed one after the other."""

import logging

from lanewise.runtime import StepRefusedError

logger = logging.getLogger(__name__)

# One request that no step can run fails alone, and others succeed between; a model that is broken
# fails them all.
MAX_FAILURES = 3


class FailureStreak:
    """Failures of sequences alone in a step, with no success between; any thread may read it."""

    def __init__(self) -> None:
        self._count = 0
        self._last = ""

    @property
    def reason(self) -> str | None:
        """Why nothing can be expected of the model now; None while it works."""
        if self._count < MAX_FAILURES:
            return None
        return f"the last {self._count} sequences failed: {self._last}"

    def note_failure(self, error: Exception) -> None:
        """A sequence failed in a step of its own; what its request asked for says nothing."""
        if isinstance(error, StepRefusedError):
            return
        self._last = str(error)
        self._count += 1
        if self._count == MAX_FAILURES:
            logger.error("not ready until a step succeeds: %s", self.reason)

    def note_success(self) -> None:
        """A step gave what it should."""
        if self._count >= MAX_FAILURES:
            logger.warning("steps succeed again, after %d sequences that failed", self._count)
        self._count = 0
