"""Rows of pictures: made between steps in slices of time, oldest sequence first, and kept.

A waiting sequence is admitted once the cache has the rows of every picture that its cached prefix
does not cover. A tower works for one such sequence at a time, so that what it has made and no step
has read yet stays small. Rows of equal pictures are kept for requests of the same salt, within a
budget; what was used longest ago goes first.
"""

import logging
import time
from collections import OrderedDict
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lanewise.engine.base.picture import Picture
from lanewise.engine.base.sequence import Rows, Scheduled
from lanewise.engine.metering.metrics import Metrics

logger = logging.getLogger(__name__)

SLICE_S = 0.05  # where nothing else runs: as long as a new request may wait
LEAST_S, MOST_S = 0.005, 0.03  # beside other sequences: as long as their last step took
Key = tuple[str, bytes]


class TowerJob(Protocol):
    """A picture on its way through a tower."""

    @property
    def rows(self) -> Rows:
        """What the tower makes of it; complete when ``advance`` has said so."""

    def advance(self, nanoseconds: int) -> bool:
        """Work for about so long; whether the rows are complete."""

    def drop(self) -> None:
        """Give it up."""


class Tower(Protocol):
    """The engine's view of ``lanewise.runtime.tower.Tower``."""

    def begin(self, parts: list[NDArray[np.uint8]]) -> TowerJob:
        """Begin a picture; one at a time."""

    def close(self) -> None:
        """Free what it needs."""


class Sight:
    """Has rows made for sequences, and keeps them."""

    def __init__(self, tower: Tower, most_bytes: int, metrics: Metrics) -> None:
        self._tower = tower
        self._most_bytes = most_bytes
        self._metrics = metrics
        self._kept: OrderedDict[Key, Rows] = OrderedDict()
        self._n_bytes = 0
        self._served: Scheduled | None = None  # the sequence that waits for the tower
        self._missing: list[int] = []  # numbers of its pictures
        self._job: TowerJob | None = None  # of the first of them

    @property
    def is_working(self) -> bool:
        """Whether a sequence waits for the tower."""
        return self._served is not None

    def is_ready(self, sequence: Scheduled, n_cached: int) -> bool:
        """Whether a sequence has all rows behind its first tokens; if not, they may be made."""
        pictures = sequence.request.pictures
        lacking = [
            number
            for number, span in enumerate(pictures)
            if span.end > n_cached and number not in sequence.rows
        ]
        missing = [one for one in lacking if self._key(sequence, one) not in self._kept]
        if self._served not in (None, sequence):
            if missing:
                return False
        elif missing:
            self._serve(sequence, missing)
            return False
        for number in lacking:
            self._give(sequence, number)
            self._metrics.image_views["cached"].inc()
        if self._served is sequence:
            self.leave(sequence)
        return True

    def leave(self, sequence: Scheduled) -> None:
        """A sequence has ended, or needs no more rows."""
        if self._served is sequence:
            self._drop_job()
            self._served = None
            self._missing = []

    def advance(self, beside_s: float | None) -> tuple[Scheduled, Exception] | None:
        """Work for a slice of time; the sequence whose picture failed, if one did.

        ``beside_s`` is how long the last step took of the sequences that wait meanwhile; None:
        none do.
        """
        sequence = self._served
        if sequence is None:
            return None
        slice_s = SLICE_S if beside_s is None else min(max(beside_s, LEAST_S), MOST_S)
        number = self._missing[0]
        picture = sequence.request.pictures[number].picture
        began = time.perf_counter()
        try:
            if self._job is None:
                self._job = self._tower.begin([picture.array])
            is_done = self._job.advance(int(slice_s * 1e9))
        except Exception as error:
            logger.error("a picture failed: %s", error)
            self._job = None
            self.leave(sequence)
            return sequence, error
        finally:
            self._metrics.image_seconds.inc(time.perf_counter() - began)
        if is_done:
            self._note_done(sequence, number, picture)
        return None

    def close(self) -> None:
        """Free the tower."""
        self._drop_job()
        self._tower.close()

    def _note_done(self, sequence: Scheduled, number: int, picture: Picture) -> None:
        assert self._job is not None
        rows, self._job = self._job.rows, None
        self._metrics.image_views["computed"].inc()
        self._metrics.image_tokens.inc(picture.n_tokens)
        key = self._key(sequence, number)
        self._keep(key, rows)
        # Its other pictures may be the same one.
        for same in [one for one in self._missing if self._key(sequence, one) == key]:
            sequence.rows[same] = rows
            self._missing.remove(same)
        if not self._missing:
            self._served = None

    def _serve(self, sequence: Scheduled, missing: list[int]) -> None:
        if self._served is sequence and self._missing[:1] == missing[:1]:
            self._missing = missing
            return
        self._drop_job()
        self._served, self._missing = sequence, missing

    def _give(self, sequence: Scheduled, number: int) -> None:
        key = self._key(sequence, number)
        self._kept.move_to_end(key)
        sequence.rows[number] = self._kept[key]

    def _keep(self, key: Key, rows: Rows) -> None:
        if rows.nbytes > self._most_bytes:
            return
        self._kept[key] = rows
        self._n_bytes += rows.nbytes
        while self._n_bytes > self._most_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._n_bytes -= oldest.nbytes

    def _drop_job(self) -> None:
        if self._job is not None:
            self._job.drop()
            self._job = None

    @staticmethod
    def _key(sequence: Scheduled, number: int) -> Key:
        request = sequence.request
        return request.cache_salt, request.pictures[number].picture.digest
