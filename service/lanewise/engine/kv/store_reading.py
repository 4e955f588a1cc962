"""What a waiting sequence needs of a store is read before its turn.

What was read becomes findable like all else in memory. Sequences that waited for it find it as they
always do.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from lanewise.engine.base.block_pool import BlockPool, Key, key_in_group
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.window import Windows
from lanewise.engine.kv.states import NoStates
from lanewise.engine.kv.store_parts import Carrier, Files, Memory, Part, StoreCounts, name_of_state
from lanewise.runtime import BLOCK_TOKENS

LEAST_READ = 2  # blocks: less is computed sooner than waited for
LEAST_FREE = 16  # blocks that reading leaves free
# Seconds after which a reading speed that was too slow is halved, so that it is tried again.
FORGET_S = 30.0
UNKNOWN_S = 0.001  # for a token to compute, before that was measured
Kind = tuple[bool, bool]  # whether it is near, whether it is a snapshot
NOT_FOUND = -1  # in place of a block: it is in the store alone


@dataclass(slots=True)
class _Wanted:
    """A block or a snapshot to be read, and what it is listed under then."""

    part: Part
    key: Key
    before: Key = b""
    tokens: Sequence[int] = ()
    is_near: bool = True

    @property
    def kind(self) -> Kind:
        return self.is_near, self.part.is_state


@dataclass(eq=False, slots=True)
class _Reading:
    """What a waiting sequence waits for."""

    sequence: Scheduled
    wanted: list[_Wanted]  # in the order of the text: the first of them are a beginning
    compute_s: float  # what computing instead is expected to take
    until: float  # by time.monotonic(): computing would be done by then
    is_dropped: bool = False
    n_done: int = 0
    seconds: list[float] = field(default_factory=list)  # of each part that was tried


class ReadTimes:
    """How long blocks and snapshots take to read, averaged; nothing before any was read."""

    def __init__(self) -> None:
        self._seconds: dict[Kind, float] = {}
        self._measured_at = 0.0

    def note(self, kind: Kind, seconds: float) -> None:
        """One was read in so many seconds."""
        known = self._seconds.get(kind)
        self._seconds[kind] = seconds if known is None else known + (seconds - known) / 4
        self._measured_at = time.monotonic()

    def expected(self, kinds: Iterable[Kind]) -> float:
        """Seconds for all of these. What is long ago counts less, so that it is tried again."""
        idle_s = time.monotonic() - self._measured_at
        seconds = sum(self._seconds.get(kind, 0.0) for kind in kinds)
        return seconds * math.exp2(-(idle_s // FORGET_S))


class Reader:
    """Decides on the engine's thread what its own thread reads."""

    def __init__(
        self,
        memory: Memory,
        windows: Windows,
        states: NoStates,
        counts: StoreCounts,
        seconds_to_compute: Callable[[int, int], float] | None,
    ) -> None:
        self._memory, self._windows, self._states = memory, windows, states
        self._counts = counts
        self.seconds_to_compute = seconds_to_compute
        self._carrier = Carrier(memory)
        self._asked: dict[Scheduled, int] = {}  # first blocks of each that the store has
        self._readings: dict[Scheduled, _Reading] = {}
        self._times = ReadTimes()
        self.thread = ThreadPoolExecutor(1, "lanewise-store-read")

    @property
    def is_reading(self) -> bool:
        """Whether a sequence may be waiting."""
        return bool(self._readings)

    def n_alike(self, sequence: Scheduled) -> int:
        """How many of a sequence's first blocks the store had when it was first asked."""
        return self._asked.get(sequence, 0)

    def holds(self, sequence: Scheduled, files: Files | None) -> bool:
        """Whether a sequence waits; the first call for a sequence decides whether to read."""
        if sequence not in self._asked:
            self._asked[sequence] = 0
            if files is not None and sequence.n_reusable > 0:
                self._begin(sequence, files)
        reading = self._readings.get(sequence)
        if reading is None:
            return False
        if time.monotonic() < reading.until:
            return True
        self._drop(sequence)
        return False

    def leave(self, sequence: Scheduled) -> None:
        """A sequence starts, or has ended."""
        self._asked.pop(sequence, None)
        self._drop(sequence)

    def close(self) -> None:
        """Read nothing more, and end the thread."""
        for sequence in list(self._readings):
            self._drop(sequence)
        self.thread.shutdown(cancel_futures=True)

    def _begin(self, sequence: Scheduled, files: Files) -> None:
        """Read what the store has beyond memory of a sequence's beginning, if that is faster."""
        pool, states = self._memory.pool, self._states
        here = states.find_beginning(sequence, pool, self._windows)
        there = states.find_beginning(
            sequence, _Beyond(pool, files), self._windows, _StoredStates(files)
        )
        self._asked[sequence] = there.n_alike
        n_more = there.n_full - here.n_full
        lacking = [
            (there.n_full - len(blocks) + place, group)
            for group, blocks in enumerate(there.blocks)
            for place, block in enumerate(blocks)
            if block == NOT_FOUND
        ]
        wanted = [_block(sequence, index, group) for index, group in sorted(lacking)]
        state = sequence.key_before(there.n_full) if states.exist and there.n_full else None
        if state is not None and state not in states.snapshots:
            wanted.append(_Wanted(Part(name_of_state(state), -1, is_state=True), state))
        for one in wanted:
            one.is_near = files.is_near(one.part.name)
        compute_s = self._compute_seconds(n_more * BLOCK_TOKENS, here.n_full * BLOCK_TOKENS)
        expected_s = self._times.expected(one.kind for one in wanted)
        if n_more < LEAST_READ or expected_s > compute_s:
            return
        found = [block for blocks in there.blocks for block in blocks if block != NOT_FOUND]
        if self._take_places(wanted, found):
            until = time.monotonic() + max(compute_s, 0.05)
            reading = self._readings[sequence] = _Reading(sequence, wanted, compute_s, until)
            self.thread.submit(self._read, files, reading)

    def _take_places(self, wanted: list[_Wanted], found: list[int]) -> bool:
        """Give all that is wanted a place in memory; false if there is too little room.

        ``found`` are the blocks that are there, of which none makes room for the others.
        """
        pool = self._memory.pool
        blocks = [one for one in wanted if not one.part.is_state]
        if len(blocks) > pool.n_free - sum(map(pool.is_free, found)) - LEAST_FREE:
            return False
        for one in wanted:
            if one.part.is_state:
                place = self._memory.snapshots.reserve()
                if place is None:
                    return False
                one.part = replace(one.part, place=place)
        pool.share(found)
        for one, block in zip(blocks, pool.allocate(len(blocks)), strict=True):
            one.part = replace(one.part, place=block)
        pool.release(found)
        return True

    def _compute_seconds(self, n_tokens: int, n_before: int) -> float:
        """How long computing takes; a guess before any step was measured."""
        known = self.seconds_to_compute
        return (known(n_tokens, n_before) if known else 0.0) or UNKNOWN_S * n_tokens

    def _drop(self, sequence: Scheduled) -> None:
        """A sequence waits no longer; what was taken for it is given back when reading ends."""
        reading = self._readings.pop(sequence, None)
        if reading is not None:
            reading.is_dropped = True

    def _read(self, files: Files, reading: _Reading) -> None:
        """On the thread that reads."""
        try:
            files.expect([one.part.name for one in reading.wanted])
            for one in reading.wanted:
                if reading.is_dropped:
                    break
                began = time.monotonic()
                try:
                    is_right = self._carrier.read(files, one.part)
                finally:
                    reading.seconds.append(time.monotonic() - began)
                if not is_right:
                    break
                reading.n_done += 1
            files.expect(())
        finally:
            self._memory.post(lambda: self._end(reading))

    def _end(self, reading: _Reading) -> None:
        pool, snapshots, counts = self._memory.pool, self._memory.snapshots, self._counts
        for number, one in enumerate(reading.wanted):
            is_done, place = number < reading.n_done, one.part.place
            if one.part.is_state:
                if is_done:
                    snapshots.keep(one.key, place)
                    counts.states_read += 1
                else:
                    snapshots.drop(place)
            elif is_done:
                pool.keep(place, one.key, one.before, one.tokens)
                counts.read += 1
        pool.release([one.part.place for one in reading.wanted if not one.part.is_state])
        for one, seconds in zip(reading.wanted, reading.seconds, strict=False):
            self._times.note(one.kind, seconds)
        counts.read_s += sum(reading.seconds)
        if not reading.is_dropped:
            computed_s = reading.compute_s * reading.n_done / len(reading.wanted)
            counts.saved_s += max(0.0, computed_s - sum(reading.seconds))
        if reading.n_done < len(reading.seconds):
            counts.missed += 1
        if self._readings.get(reading.sequence) is reading:
            del self._readings[reading.sequence]


def _block(sequence: Scheduled, index: int, group: int) -> _Wanted:
    """What is to be read of a block, which has no place in memory yet."""
    key = key_in_group(sequence.block_key(index), group)
    before = key_in_group(sequence.key_before(index), group)
    return _Wanted(Part(key, NOT_FOUND), key, before, sequence.block_tokens(index))


class _Beyond:
    """The pool, and behind it the store."""

    def __init__(self, pool: BlockPool, files: Files) -> None:
        self._pool, self._files = pool, files

    def find(self, key: Key) -> int | None:
        """The block with this key, or ``NOT_FOUND`` if it is in the store alone."""
        block = self._pool.find(key)
        return NOT_FOUND if block is None and self._files.has(key) else block


class _StoredStates:
    """The keys of snapshots in a store."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self._files.has(name_of_state(key))
