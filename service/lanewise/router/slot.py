"""One model of a router: its process if it has one, its requests, and when it may go."""

import asyncio
import math
from collections import Counter

from lanewise.router.entries import Entry
from lanewise.router.process import Child


class Slot:
    """A model of the catalogue, and its process if it has one."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.child: Child | None = None  # that answers
        self.answers: Counter[int] = Counter()  # requests of each key that it answers
        self.waits: Counter[int] = Counter()  # requests of each key that wait for it
        self.is_leaving = False  # it has had its turn
        self.loaded_at = self.load_s = 0.0  # when, and how long that took
        self.has_answered = False  # since then
        self.used_at = 0.0
        self.stays_s: float | None = None  # keep_alive of its last request that said one
        self.failures, self.retry_at, self.failure = 0, 0.0, ""
        self.loading: asyncio.Task[None] | None = None
        self.is_asked_to_load = False  # without a request that would be the first it answers
        self.planned: tuple[int, dict[str, object]] | None = None
        self.card: dict[str, object] = {}  # what its server said of it in /v1/models

    @property
    def state(self) -> str:
        """In the words of llama.cpp's router."""
        if self.child is not None:
            return "loaded"
        return "loading" if self.loading is not None else "unloaded"

    @property
    def may_go(self) -> bool:
        """Whether it may be unloaded for another."""
        return not self.answering if self.is_leaving else not self.is_busy

    @property
    def goes_after_s(self) -> float:
        """Seconds without a request after which it is unloaded."""
        if self.entry.pinned:
            return math.inf
        return (self.entry.idle_s or math.inf) if self.stays_s is None else self.stays_s

    @property
    def names(self) -> tuple[str, ...]:
        """What lists call it."""
        if self.entry.is_pulled:
            return (self.entry.name,) if self.is_known else ()
        return self.entry.names

    @property
    def is_known(self) -> bool:
        """Whether there is such a model: of the hub's, not before its file was read."""
        return not self.entry.is_pulled or self.planned is not None

    @property
    def answering(self) -> int:
        """Requests that it answers."""
        return self.answers.total()

    @property
    def waiting(self) -> int:
        """Requests that wait for it."""
        return self.waits.total()

    @property
    def is_busy(self) -> bool:
        """Whether a request has it or waits for it."""
        return self.answering + self.waiting > 0
