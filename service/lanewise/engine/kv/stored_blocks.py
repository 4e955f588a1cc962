"""Blocks beyond memory: written behind the answers, read ahead of a sequence's turn.

All decisions are the engine's thread's. A thread writes, another reads. A block that is being
written or read is held like one that a sequence uses, so nothing else changes it. What was read
becomes findable like any other block, and sequences that waited for it find it as they always do.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from lanewise.engine.base.block_pool import BlockPool, Key, key_in_group
from lanewise.engine.base.runner import BlockRunner
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.window import Windows
from lanewise.engine.kv.prefix import find_in_all
from lanewise.runtime import BLOCK_TOKENS

logger = logging.getLogger(__name__)

MOST_WRITING = 16  # blocks that are held for the thread that writes
LEAST_READ = 2  # blocks: less is computed sooner than waited for
# Seconds after which a reading speed that was too slow is halved, so that it is tried again.
FORGET_S = 30.0
UNKNOWN_S = 0.001  # for a token to compute, before that was measured
LOOK_S = 5.0  # seconds between looks at what other processes have written
FLUSH_S = 2.0  # what is not written when the server stops gets so long
NOT_FOUND = -1  # in place of a block: it is in the store alone


class Files(Protocol):
    """The store: ``lanewise.store.block_files.BlockFiles``, or a fake in tests."""

    block_bytes: int

    def has(self, key: bytes) -> bool:
        """Whether a block is there, without waiting for a disk."""

    def read(self, key: bytes, into: bytearray) -> bool:
        """Read a block; false if it is not there, or not right."""

    def write(self, key: bytes, data: bytearray) -> None:
        """Write a block; OSError if that cannot be done."""

    def look(self) -> None:
        """See what other processes have added and removed."""


@dataclass(slots=True)
class StoreCounts:
    """What was done since the counts were last taken."""

    written: int = 0
    read: int = 0
    missed: int = 0  # not there any more, or not right
    failed: int = 0  # could not be written
    read_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A block to be read, and what it is listed under then."""

    block: int
    key: Key
    before: Key
    tokens: Sequence[int]


@dataclass(eq=False, slots=True)
class _Reading:
    """The blocks that a waiting sequence waits for."""

    sequence: Scheduled
    wanted: list[_Wanted]
    until: float  # by time.monotonic(): computing would be done by then
    is_dropped: bool = False
    n_done: int = 0


class NoStore:
    """In place of ``StoredBlocks`` where there is no store."""

    @property
    def is_reading(self) -> bool:
        """Whether a sequence may be waiting for blocks."""
        return False

    def holds(self, sequence: Scheduled) -> bool:
        """Whether a sequence that could start waits for blocks that are being read."""
        return False

    def note_kept(self, key: Key, block: int) -> None:
        """A full block has become findable."""

    def leave(self, sequence: Scheduled) -> None:
        """A sequence starts, or has ended."""

    def take_counts(self) -> StoreCounts:
        """What was done since the last call."""
        return StoreCounts()

    def close(self) -> None:
        """End the threads; no block is touched afterwards."""


class StoredBlocks(NoStore):
    """Keeps blocks in a store and gets them back, for the engine whose pool it is given."""

    def __init__(
        self,
        open_files: Callable[[], Files],
        runner: BlockRunner,
        pool: BlockPool,
        windows: Windows,
        post: Callable[[Callable[[], None]], None],
        seconds_to_compute: Callable[[int, int], float] | None = None,
    ) -> None:
        """Start the threads; ``open_files`` runs on one of them and may take its time.

        ``post`` runs a call on the engine's thread. ``seconds_to_compute`` tells how long so many
        tokens behind so many others take.
        """
        self._runner, self._pool, self._windows = runner, pool, windows
        self._post = post
        self._seconds_to_compute = seconds_to_compute
        self._files: Files | None = None
        self._being_written = bytearray()  # of the thread that writes
        self._pending: dict[Key, int] = {}  # to be written, oldest first
        self._n_writing = 0
        self._readings: dict[Scheduled, _Reading] = {}
        self._asked: set[Scheduled] = set()
        self._read_s = 0.0  # of a block, averaged
        self._measured_at = 0.0
        self._counts = StoreCounts()
        self._looked_at = time.monotonic()
        self._complained = False
        self._is_closing = False
        self._write_until = math.inf
        self._writer = ThreadPoolExecutor(1, "lanewise-store-write", _give_way)
        self._reader = ThreadPoolExecutor(1, "lanewise-store-read")
        self._reader.submit(self._open, open_files)

    @property
    def is_reading(self) -> bool:
        """As ``NoStore.is_reading``."""
        return bool(self._readings)

    def holds(self, sequence: Scheduled) -> bool:
        """As ``NoStore.holds``; the first call for a sequence decides whether to read."""
        if sequence not in self._asked:
            self._asked.add(sequence)
            self._begin_reading(sequence)
        reading = self._readings.get(sequence)
        if reading is None:
            return False
        if time.monotonic() < reading.until:
            return True
        self._drop(sequence)
        return False

    def note_kept(self, key: Key, block: int) -> None:
        """As ``NoStore.note_kept``."""
        if self._files is None or not self._files.has(key):
            self._pending[key] = block
            while len(self._pending) > self._pool.n_blocks:
                del self._pending[next(iter(self._pending))]
            self._give_to_write()

    def leave(self, sequence: Scheduled) -> None:
        """As ``NoStore.leave``."""
        self._asked.discard(sequence)
        self._drop(sequence)

    def take_counts(self) -> StoreCounts:
        """As ``NoStore.take_counts``."""
        counts, self._counts = self._counts, StoreCounts()
        return counts

    def close(self) -> None:
        """As ``NoStore.close``; what was still to be written gets a moment."""
        self._is_closing = True
        for sequence in list(self._readings):
            self._drop(sequence)
        self._reader.shutdown(cancel_futures=True)
        self._write_until = time.monotonic() + FLUSH_S
        files = self._files
        while files is not None and (found := self._next_pending()) is not None:
            self._writer.submit(self._write_in_time, files, *found)
        self._writer.shutdown()

    def _open(self, open_files: Callable[[], Files]) -> None:
        try:
            files = open_files()
        except Exception as error:
            logger.error("there is no KV store: %s", error)
        else:
            self._post(lambda: self._begin(files))

    def _begin(self, files: Files) -> None:
        self._files = files
        self._being_written = bytearray(files.block_bytes)
        self._give_to_write()

    # Writing.

    def _next_pending(self) -> tuple[Key, int] | None:
        """The oldest block to be written that still is what it was."""
        while self._pending:
            key = next(iter(self._pending))
            block = self._pending.pop(key)
            if self._pool.find(key) == block:
                return key, block
        return None

    def _give_to_write(self) -> None:
        """Hand blocks to the thread that writes, and hold them meanwhile."""
        files = self._files
        while files is not None and not self._is_closing and self._n_writing < MOST_WRITING:
            # A held block is not free: sequences come first.
            if self._pool.n_free <= MOST_WRITING or (found := self._next_pending()) is None:
                return
            key, block = found
            if not files.has(key):
                self._pool.share([block])
                self._n_writing += 1
                self._writer.submit(self._write_held, files, key, block)

    def _write_held(self, files: Files, key: Key, block: int) -> None:
        """On the thread that writes."""
        error = self._write_in_time(files, key, block)
        self._post(lambda: self._end_writing(block, error))

    def _write_in_time(self, files: Files, key: Key, block: int) -> Exception | None:
        """Write a block; returns why that failed. Nothing is written long after the end."""
        if time.monotonic() > self._write_until:
            return None
        try:
            self._runner.read_block(block, self._being_written)
            files.write(key, self._being_written)
        except Exception as error:
            return error
        return None

    def _end_writing(self, block: int, error: Exception | None) -> None:
        self._pool.release([block])
        self._n_writing -= 1
        if error is None:
            self._counts.written += 1
        else:
            self._counts.failed += 1
            if not self._complained:
                self._complained = True
                logger.warning("a block of the KV store cannot be written: %s", error)
        self._give_to_write()

    # Reading.

    def _begin_reading(self, sequence: Scheduled) -> None:
        """Read what the store has beyond memory of a sequence's beginning, if that is faster."""
        files = self._files
        # The key of an adapter is another after a restart.
        is_of_use = not sequence.is_scoring and sequence.request.adapter is None
        if files is None or self._is_closing or not is_of_use:
            return
        self._look_again(files)
        most = (len(sequence.tokens) - 1) // BLOCK_TOKENS
        n_here, _ = find_in_all(sequence, most, self._pool, self._windows)
        n_full, found = find_in_all(sequence, most, _Beyond(self._pool, files), self._windows)
        n_tokens = (n_full - n_here) * BLOCK_TOKENS
        missing = [
            (n_full - len(blocks) + place, group)
            for group, blocks in enumerate(found)
            for place, block in enumerate(blocks)
            if block == NOT_FOUND
        ]
        compute_s = self._compute_seconds(n_tokens, n_here * BLOCK_TOKENS)
        if n_full - n_here < LEAST_READ or self._expected_s(len(missing)) > compute_s:
            return
        if len(missing) > self._pool.n_free - MOST_WRITING:
            return
        wanted = []
        # In the order of the text: what was read when reading ends early is a beginning.
        for (index, group), block in zip(
            sorted(missing), self._pool.allocate(len(missing)), strict=True
        ):
            key = key_in_group(sequence.block_key(index), group)
            before = key_in_group(sequence.key_before(index), group)
            wanted.append(_Wanted(block, key, before, sequence.block_tokens(index)))
        reading = _Reading(sequence, wanted, time.monotonic() + max(compute_s, 0.05))
        self._readings[sequence] = reading
        self._reader.submit(self._read_wanted, files, reading)

    def _look_again(self, files: Files) -> None:
        """Let what other processes have added be seen, now and then."""
        if time.monotonic() - self._looked_at > LOOK_S:
            self._looked_at = time.monotonic()
            self._writer.submit(files.look)

    def _compute_seconds(self, n_tokens: int, n_before: int) -> float:
        """How long computing takes; a guess before any step was measured."""
        known = self._seconds_to_compute
        return (known(n_tokens, n_before) if known else 0.0) or UNKNOWN_S * n_tokens

    def _expected_s(self, n_blocks: int) -> float:
        """How long so many blocks are expected to take; nothing before any was read."""
        idle_s = time.monotonic() - self._measured_at
        return n_blocks * self._read_s * math.exp2(-(idle_s // FORGET_S))

    def _drop(self, sequence: Scheduled) -> None:
        """A sequence waits no longer; the thread that reads gives its blocks back."""
        reading = self._readings.pop(sequence, None)
        if reading is not None:
            reading.is_dropped = True

    def _end_reading(self, reading: _Reading, seconds: float) -> None:
        n_done = reading.n_done
        for one in reading.wanted[:n_done]:
            self._pool.keep(one.block, one.key, one.before, one.tokens)
        self._pool.release([one.block for one in reading.wanted])
        n_tried = min(n_done + 1, len(reading.wanted))
        self._read_s += (seconds / n_tried - self._read_s) / (4 if self._read_s else 1)
        self._measured_at = time.monotonic()
        self._counts.read += n_done
        self._counts.read_s += seconds
        if n_done < len(reading.wanted) and not reading.is_dropped:
            self._counts.missed += 1
        if self._readings.get(reading.sequence) is reading:
            del self._readings[reading.sequence]

    def _read_wanted(self, files: Files, reading: _Reading) -> None:
        """On the thread that reads."""
        began = time.monotonic()
        data = bytearray(files.block_bytes)
        try:
            for one in reading.wanted:
                if reading.is_dropped or not files.read(one.key, data):
                    break
                self._runner.write_block(one.block, data)
                reading.n_done += 1
        finally:
            seconds = time.monotonic() - began
            self._post(lambda: self._end_reading(reading, seconds))


class _Beyond:
    """The pool, and behind it the store."""

    def __init__(self, pool: BlockPool, files: Files) -> None:
        self._pool, self._files = pool, files

    def find(self, key: Key) -> int | None:
        """The block with this key, or ``NOT_FOUND`` if it is in the store alone."""
        block = self._pool.find(key)
        return NOT_FOUND if block is None and self._files.has(key) else block


def _give_way() -> None:
    """Let the threads that compute go first."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
