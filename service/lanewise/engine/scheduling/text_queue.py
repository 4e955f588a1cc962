"""Whole texts that wait to be run, and the choice of texts for the next step."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EncodingRequest:
    """The texts of one request as token ids, special tokens included."""

    texts: Sequence[Ids]
    types: Sequence[Ids] | None = None  # token types; None: all 0
    pooling: str | None = None  # mean, cls, last, or none for a row per token; None: the model's
    normalize: bool | None = None  # None: as the model's files say
    client: int = 0
    seen: Sequence[int] | None = None  # attended first tokens of each text; None: all

    @property
    def mode(self) -> tuple[Any, ...]:
        """Texts of equal modes run in one call."""
        return self.pooling, self.normalize, self.types is None, self.seen is None


@dataclass(eq=False, slots=True)
class EncodingJob:
    """One request being answered."""

    request: EncodingRequest
    arrived: float
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[list[Floats]]
    is_counted: bool = True
    trace_id: str | None = None
    n_tokens: int = 0
    n_begun: int = 0  # texts that have been in a step
    n_left_tokens: int = 0  # tokens of the other texts
    started: float | None = None
    is_over: bool = False
    rows: list[Floats] = field(default_factory=list)  # of the texts that have been run, in order

    def __post_init__(self) -> None:
        self.n_tokens = self.n_left_tokens = sum(map(len, self.request.texts))

    @property
    def has_started(self) -> bool:
        """Whether one of its texts has been in a step."""
        return self.started is not None

    @property
    def n_left(self) -> int:
        """Texts that still wait."""
        return len(self.request.texts) - self.n_begun


@dataclass(frozen=True, slots=True)
class Turn:
    """Some texts of a request in a step."""

    job: EncodingJob
    first: int
    end: int

    @property
    def n_tokens(self) -> int:
        """Tokens of these texts."""
        return sum(map(len, self.job.request.texts[self.first : self.end]))


def beyond(max_tokens: int) -> int:
    """How many tokens of short texts a full step may take in addition."""
    return max_tokens // 2


class TextQueue:
    """Requests in a fair order: clients in turn, and each client's requests in turn.

    In a step each client, and within it each request, gets about the same number of tokens. So
    neither a million texts nor a thousand requests delay another client's text by more than a step
    or two. Remaining room goes to the oldest requests. A request that got less than its share for
    lack of room begins the next step, where it always fits. The first short text of a new request
    may also join a full step, which may grow by half for that: otherwise it would wait where one
    text fills the step. Clients below 0 are in the background: they wait while others do.
    """

    def __init__(self) -> None:
        self._clients: OrderedDict[int, deque[EncodingJob]] = OrderedDict()
        self.n_texts = 0

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    def add(self, job: EncodingJob) -> None:
        """Add a new request."""
        self._clients.setdefault(job.request.client, deque()).append(job)
        self.n_texts += job.n_left

    def remove(self, job: EncodingJob) -> None:
        """Remove a request that is over; does nothing if it is not waiting."""
        jobs = self._clients.get(job.request.client)
        if jobs is not None and job in jobs:
            jobs.remove(job)
            self.n_texts -= job.n_left
            if not jobs:
                del self._clients[job.request.client]

    def take(self, max_tokens: int, max_texts: int) -> list[Turn]:
        """Remove and return the texts of the next step, at least one if any waits."""
        aside = self._without_background()
        try:
            return self._take(max_tokens, max_texts)
        finally:
            self._clients.update(aside)
            self.n_texts += _n_texts(aside)

    def _without_background(self) -> dict[int, deque[EncodingJob]]:
        """What clients in the background have, taken out of the queue, if others wait too."""
        names = [client for client in self._clients if client < 0]
        if len(names) == len(self._clients):
            return {}
        aside = {client: self._clients.pop(client) for client in names}
        self.n_texts -= _n_texts(aside)
        return aside

    def _take(self, max_tokens: int, max_texts: int) -> list[Turn]:
        taken: dict[EncodingJob, int] = {}  # index of each request's first text in this step
        left = [max_tokens, max_texts]
        behind: EncodingJob | None = None
        while self._clients and (not taken or min(left) > 0):
            before = self.n_texts
            quantum = max(1, left[0] // len(self))
            for job in self._round():
                first, n_tokens = job.n_begun, job.n_left_tokens
                if self._begin(job, left, quantum, is_first=not taken):
                    taken.setdefault(job, first)
                if behind is None and job.n_left and n_tokens - job.n_left_tokens < quantum:
                    behind = job
            if self.n_texts == before:
                break
        if behind is not None and behind.n_left:
            self._put_first(behind)
        self._take_along(taken, [max(0, left[0]) + beyond(max_tokens), left[1]])
        return [Turn(job, first, job.n_begun) for job, first in taken.items()]

    def _take_along(self, taken: dict[EncodingJob, int], left: list[int]) -> None:
        """Take the first text of requests that got no turn, clients in turn."""
        for jobs in list(self._clients.values()):
            for job in list(jobs):
                if left[0] <= 0 or left[1] <= 0:
                    return
                if not job.n_begun and self._begin(job, left, 1, is_first=False):
                    taken[job] = 0
                    if not job.n_left:
                        self.remove(job)

    def _round(self) -> Iterator[EncodingJob]:
        """Each request once, clients in turn; after its turn a request goes to the end."""
        for _ in range(len(self)):
            client, jobs = next(iter(self._clients.items()))
            job = jobs[0]
            yield job
            jobs.rotate(-1)
            self._clients.move_to_end(client)
            if not job.n_left:
                self.remove(job)

    def _put_first(self, job: EncodingJob) -> None:
        """Make a request the first of the next round."""
        clients, jobs = self._clients, self._clients[job.request.client]
        while next(iter(clients)) != job.request.client:
            clients.move_to_end(next(iter(clients)))
        jobs.rotate(-jobs.index(job))

    def _begin(self, job: EncodingJob, left: list[int], quantum: int, is_first: bool) -> bool:
        """Take texts of a request while there is room: a quantum of tokens, or one text."""
        first = end = job.n_begun
        texts, taken = job.request.texts, 0
        while end < len(texts) and left[1] > 0 and taken < quantum:
            n_tokens = len(texts[end])
            if n_tokens > left[0] and not (is_first and end == first):
                break
            left[0] -= n_tokens
            left[1] -= 1
            taken += n_tokens
            end += 1
        job.n_begun = end
        job.n_left_tokens -= taken
        self.n_texts -= end - first
        return end > first


def _n_texts(clients: Mapping[int, Iterable[EncodingJob]]) -> int:
    """Texts that are left of all these clients' requests."""
    return sum(job.n_left for jobs in clients.values() for job in jobs)
