"""Blocks and snapshots beyond memory: one thread writes them, another reads them.

All decisions are the engine's thread's.
"""

import logging
import time
from collections.abc import Callable

from lanewise.engine.base.block_pool import BlockPool, Key
from lanewise.engine.base.runner import BlockRunner
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.window import Windows
from lanewise.engine.kv.states import NoStates
from lanewise.engine.kv.store_parts import Files, Memory, StoreCounts
from lanewise.engine.kv.store_reading import Reader
from lanewise.engine.kv.store_writing import Writer

logger = logging.getLogger(__name__)

LOOK_S = 5.0  # seconds between looks at what other processes have written


class NoStore:
    """In place of ``StoredBlocks`` where there is no store."""

    @property
    def is_reading(self) -> bool:
        """Whether a sequence may be waiting for what is read."""
        return False

    def holds(self, sequence: Scheduled) -> bool:
        """Whether a sequence that could start waits for what is being read."""
        return False

    def n_alike(self, sequence: Scheduled) -> int:
        """How many of a waiting sequence's first blocks the store has, with or without a state."""
        return 0

    def note_kept(self, key: Key, block: int) -> None:
        """A full block has become findable."""

    def note_copied(self) -> None:
        """A step has copied states."""

    def leave(self, sequence: Scheduled) -> None:
        """A sequence starts, or has ended."""

    def take_counts(self) -> StoreCounts:
        """What was done since the last call."""
        return StoreCounts()

    def close(self) -> None:
        """End the threads; nothing is touched afterwards."""


class StoredBlocks(NoStore):
    """Keeps blocks and snapshots in a store and gets them back, for the engine with this pool."""

    def __init__(
        self,
        open_files: Callable[[], Files],
        runner: BlockRunner,
        pool: BlockPool,
        windows: Windows,
        states: NoStates,
        post: Callable[[Callable[[], None]], None],
        seconds_to_compute: Callable[[int, int], float] | None = None,
    ) -> None:
        """Start the threads; ``open_files`` runs on one of them and may take its time.

        ``post`` runs a call on the engine's thread. ``seconds_to_compute`` tells how long so many
        tokens behind so many others take.
        """
        self._post = post
        self._files: Files | None = None
        self._counts = StoreCounts()
        self._looked_at = time.monotonic()
        memory = Memory(runner, pool, states.snapshots, post)
        self._writer = Writer(memory, self._counts)
        self._reader = Reader(memory, windows, states, self._counts, seconds_to_compute)
        states.on_lasting = self._writer.add_state
        self._reader.thread.submit(self._open, open_files)

    @property
    def is_reading(self) -> bool:
        """As ``NoStore.is_reading``."""
        return self._reader.is_reading

    def holds(self, sequence: Scheduled) -> bool:
        """As ``NoStore.holds``; the first call for a sequence decides whether to read."""
        files = self._files
        if files is not None and time.monotonic() - self._looked_at > LOOK_S:
            self._looked_at = time.monotonic()
            self._writer.thread.submit(files.look)
        return self._reader.holds(sequence, files)

    def n_alike(self, sequence: Scheduled) -> int:
        """As ``NoStore.n_alike``."""
        return self._reader.n_alike(sequence)

    def note_kept(self, key: Key, block: int) -> None:
        """As ``NoStore.note_kept``."""
        self._writer.add_block(key, block)

    def note_copied(self) -> None:
        """As ``NoStore.note_copied``."""
        self._writer.give()

    def leave(self, sequence: Scheduled) -> None:
        """As ``NoStore.leave``."""
        self._reader.leave(sequence)

    def take_counts(self) -> StoreCounts:
        """As ``NoStore.take_counts``."""
        counts = self._counts.take()
        if self._files is not None:
            counts.remote = self._files.take_remote_counts()
        return counts

    def close(self) -> None:
        """As ``NoStore.close``; what was still to be written gets a moment."""
        files, self._files = self._files, None
        self._reader.close()
        self._writer.close()
        if files is not None:
            files.close()

    def _open(self, open_files: Callable[[], Files]) -> None:
        try:
            files = open_files()
        except Exception as error:
            logger.error("there is no KV store: %s", error)
        else:
            self._post(lambda: self._begin(files))

    def _begin(self, files: Files) -> None:
        self._files = files
        # The engine's thread publishes counts when it wakes.
        files.tell(lambda: self._post(lambda: None))
        self._writer.begin(files)
