"""Blocks and snapshots are written behind the answers, by a thread that gives way to steps.

What is being written is held like what a sequence uses, so nothing else changes it.
"""

import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor

from lanewise.engine.base.block_pool import Key
from lanewise.engine.kv.store_parts import (
    Carrier,
    Files,
    Memory,
    Part,
    StoreCounts,
    name_of_state,
)
from lanewise.giving_way import give_way

logger = logging.getLogger(__name__)

MOST_WRITING = 16  # blocks that are held for the thread that writes
FLUSH_S = 2.0  # what is not written when the server stops gets so long


class Writer:
    """Decides on the engine's thread what its own thread writes."""

    def __init__(self, memory: Memory, counts: StoreCounts) -> None:
        self._memory, self._counts = memory, counts
        self._carrier = Carrier(memory)
        self._files: Files | None = None
        self._blocks: dict[Key, int] = {}  # to be written, oldest first
        self._states: dict[Key, None] = {}  # keys of snapshots, oldest first
        self._n_writing = 0  # blocks
        self._state_written: int | None = None  # the place that is held
        self._complained = False
        self._is_closing = False
        self._until = math.inf
        self.thread = ThreadPoolExecutor(1, "lanewise-store-write", give_way)

    @property
    def is_idle(self) -> bool:
        """Whether all that can be written now is written."""
        return not (self._blocks or self._n_writing or self._state_written is not None)

    def begin(self, files: Files) -> None:
        """The store is open."""
        self._files = files
        self.give()

    def add_block(self, name: Key, block: int) -> None:
        """Have a block written."""
        if self._files is None or not self._files.has(name):
            self._blocks[name] = block
            while len(self._blocks) > self._memory.pool.n_blocks:
                del self._blocks[next(iter(self._blocks))]
            self.give()

    def add_state(self, key: Key) -> None:
        """Have a snapshot written once the step that makes it has run."""
        if self._files is None or not self._files.has(name_of_state(key)):
            self._states[key] = None
            self.give()

    def give(self) -> None:
        """Hand what is to be written to the thread."""
        files = self._files
        if files is None or self._is_closing:
            return
        if self._state_written is None and (state := self._next_state(files)) is not None:
            self._state_written = state.place
            self.thread.submit(self._write_held, files, state)
        # A held block is not free: sequences come first.
        while self._n_writing < MOST_WRITING and self._memory.pool.n_free > MOST_WRITING:
            block = self._next_block(files)
            if block is None:
                return
            self._memory.pool.share([block.place])
            self._n_writing += 1
            self.thread.submit(self._write_held, files, block)

    def close(self) -> None:
        """Write what is left for a moment, and end the thread. No step runs any more."""
        self._is_closing = True
        self._until = time.monotonic() + FLUSH_S
        files = self._files
        if files is not None:
            while (part := self._next_block(files) or self._next_state(files)) is not None:
                self.thread.submit(self._write_in_time, files, part)
        self.thread.shutdown()

    def _next_block(self, files: Files) -> Part | None:
        """The oldest block to be written that still is what it was."""
        while self._blocks:
            name = next(iter(self._blocks))
            block = self._blocks.pop(name)
            if self._memory.pool.find(name) == block and not files.has(name):
                return Part(name, block)
        return None

    def _next_state(self, files: Files) -> Part | None:
        """The oldest snapshot to be written that has been made; it is held."""
        for key in list(self._states):
            if key not in self._memory.snapshots or files.has(name_of_state(key)):
                del self._states[key]
            elif (place := self._memory.snapshots.hold(key)) is not None:
                del self._states[key]
                return Part(name_of_state(key), place, is_state=True)
        return None

    def _write_held(self, files: Files, part: Part) -> None:
        """On the thread that writes."""
        error = self._write_in_time(files, part)
        self._memory.post(lambda: self._end(part, error))

    def _write_in_time(self, files: Files, part: Part) -> Exception | None:
        """Write a part; returns why that failed. Nothing is written long after the end."""
        if time.monotonic() > self._until:
            return None
        try:
            self._carrier.write(files, part)
        except Exception as error:
            return error
        return None

    def _end(self, part: Part, error: Exception | None) -> None:
        if part.is_state:
            self._memory.snapshots.let_go(part.place)
            self._state_written = None
        else:
            self._memory.pool.release([part.place])
            self._n_writing -= 1
        if error is not None:
            self._counts.failed += 1
            if not self._complained:
                self._complained = True
                logger.warning("the KV store cannot be written: %s", error)
        elif part.is_state:
            self._counts.states_written += 1
        else:
            self._counts.written += 1
        self.give()
