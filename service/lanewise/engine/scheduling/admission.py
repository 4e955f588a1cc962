"""Admission: counts requests accepted and not ended, and refuses what is too much."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable

from lanewise.engine.base.stream import EngineStoppedError, QueueFullError
from lanewise.engine.metering.metrics import Metrics

RATE_WINDOW_S = 30.0
MAX_RETRY_S = 60
RESERVED = 1 / 8  # share of both limits that every client may use while other clients fill the rest


class Rate:
    """An amount per second, averaged over about the last half minute."""

    def __init__(self) -> None:
        self._amount = 0.0
        self._first: float | None = None
        self._last = 0.0

    def note(self, amount: float, now: float) -> None:
        """Note that ``amount`` has happened."""
        if self._first is None:
            self._first = self._last = now
        self._amount = self._amount * self._decay(now - self._last) + amount
        self._last = now

    def seconds_for(self, amount: float, now: float) -> float:
        """Seconds that ``amount`` takes at this rate; infinite before the first measurement."""
        age = 0.0 if self._first is None else now - self._first
        if age <= 0 or not self._amount:
            return math.inf
        per_second = self._amount * self._decay(now - self._last)
        per_second /= RATE_WINDOW_S * (1 - self._decay(age))
        return amount / per_second

    @staticmethod
    def _decay(seconds: float) -> float:
        return math.exp(-seconds / RATE_WINDOW_S)


class Admission:
    """Accepts requests until one of two limits is reached; any thread may call it.

    At most ``max_sequences`` run or wait. Waiting prompts hold at most ``max_queued_tokens``, but a
    prompt that waits alone may have any length, or it could never be answered. Every client may
    always use an eighth of both limits, whatever the other clients have taken. Clients below 0 are
    in the background: the limits do not count them, and the sender of their requests bounds them.
    """

    def __init__(
        self,
        max_sequences: int,
        max_queued_tokens: int,
        metrics: Metrics,
        counted: str = "sequences",
        read: str = "prompts",
    ) -> None:
        self._counted, self._read = counted, read  # nouns for error messages
        self._max_sequences = max_sequences
        self._max_queued_tokens = max_queued_tokens
        self._rejected = metrics.rejected
        self._lock = threading.Lock()
        self._accepting = False
        self.why_closed = "the server is shutting down"
        self._unfinished: Counter[int] = Counter()  # sequences of each client
        self._queued_tokens: Counter[int] = Counter()
        self._ended = Rate()
        self._started = Rate()  # tokens of prompts

    @property
    def unfinished(self) -> int:
        """Sequences accepted and not yet ended."""
        return self._unfinished.total()

    @property
    def queued_tokens(self) -> int:
        """Tokens of prompts that have not begun to run."""
        return self._queued_tokens.total()

    def open(self) -> None:
        """Begin to accept."""
        self._accepting = True

    def close(self, why: str | None = None) -> None:
        """Refuse every request from now on."""
        with self._lock:
            self._accepting = False
            self.why_closed = why or self.why_closed

    def enter(
        self, client: int, n_sequences: int, n_tokens: int, accept: Callable[[], None]
    ) -> None:
        """Count sequences and accept them, or raise QueueFullError or EngineStoppedError.

        ``n_tokens`` is the sum over their prompts. ``accept`` runs inside the lock, so that it has
        ended before ``close`` returns.
        """
        with self._lock:
            if not self._accepting:
                self._rejected["shutting_down"].inc()
                raise EngineStoppedError(self.why_closed)
            if client >= 0:
                self._check_sequences(client, n_sequences)
                self._check_tokens(client, n_tokens)
            self._unfinished[client] += n_sequences
            self._queued_tokens[client] += n_tokens
            accept()

    def note_started(self, client: int, n_tokens: int, now: float) -> None:
        """A prompt has begun to run."""
        with self._lock:
            self._queued_tokens[client] -= n_tokens
            self._started.note(n_tokens, now)

    def note_ended(self, client: int, n_queued_tokens: int, now: float) -> None:
        """A sequence has ended; ``n_queued_tokens`` is its prompt's size if it never ran."""
        with self._lock:
            self._unfinished[client] -= 1
            self._queued_tokens[client] -= n_queued_tokens
            self._ended.note(1, now)

    def retry_after_s(self) -> int:
        """Whole seconds until a sequence is expected to end."""
        with self._lock:
            return self._whole_seconds(self._ended, 1)

    def _check_sequences(self, client: int, count: int) -> None:
        unfinished, limit = _of_others(self._unfinished), self._max_sequences
        over = unfinished + count - limit
        if over > 0 and self._unfinished[client] + count > RESERVED * limit:
            self._rejected["queue_full"].inc()
            raise QueueFullError(
                f"{unfinished} {self._counted} run or wait already; the limit is {limit}",
                retry_after_s=self._whole_seconds(self._ended, over),
            )

    def _check_tokens(self, client: int, count: int) -> None:
        queued, limit = _of_others(self._queued_tokens), self._max_queued_tokens
        over = queued + count - limit
        if over > 0 and queued and self._queued_tokens[client] + count > RESERVED * limit:
            self._rejected["queued_tokens"].inc()
            raise QueueFullError(
                f"{self._read} of {queued} tokens wait already, and this request has "
                f"{count}; the limit is {limit}",
                retry_after_s=self._whole_seconds(self._started, min(over, queued)),
            )

    @staticmethod
    def _whole_seconds(rate: Rate, amount: float) -> int:
        seconds = rate.seconds_for(amount, time.monotonic())
        return max(1, math.ceil(min(seconds, MAX_RETRY_S)))


def _of_others(counts: Counter[int]) -> int:
    """The sum of what clients have that are not in the background."""
    return sum(count for client, count in counts.items() if client >= 0)
