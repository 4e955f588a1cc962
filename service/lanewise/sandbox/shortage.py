"""Threads and processes that the system refuses, by a limit of pids or for want of memory."""

from __future__ import annotations

import logging
from time import monotonic

logger = logging.getLogger(__name__)

SAID_AGAIN_S = 60.0


class Shortage:
    """Whether the system gave the last thread or process that was asked for; for the event loop.

    Requests that need one get an error each; the log has a line when it begins and when it ends,
    at most one of each a minute.
    """

    def __init__(self) -> None:
        self.reason: str | None = None  # None: there is none
        self._said = -SAID_AGAIN_S
        self._is_told = False  # that it lasts

    def note(self, what: str, error: BaseException | str) -> str:
        """The system refused ``what``, a thread or a process; the same in words."""
        words = f"the system starts no more {what} for this server: {error}"
        if self.reason is None and monotonic() - self._said >= SAID_AGAIN_S:
            self._said = monotonic()
            self._is_told = True
            logger.error(
                "not ready until it does: %s (a limit of pids, ulimit -u, or memory)", words
            )
        self.reason = words
        return words

    def end(self) -> None:
        """The system gave one."""
        if self.reason is not None and self._is_told:
            logger.warning("ready again: the system starts threads and processes for this server")
            self._is_told = False
        self.reason = None
