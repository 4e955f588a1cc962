"""The KV cache blocks of running sequences, and the index through which later ones find them."""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from lanewise.engine.base.block_pool import (
    NO_BLOCK,
    BlockCopy,
    BlockPool,
    Key,
    blocks_for,
    key_in_group,
)
from lanewise.engine.base.sequence import BlockTable, Scheduled
from lanewise.engine.base.snapshots import StateCopy
from lanewise.engine.base.window import Windows
from lanewise.engine.kv.prefix import Prefix, no_prefix
from lanewise.engine.kv.states import NoStates
from lanewise.engine.kv.stored_blocks import NoStore
from lanewise.runtime import BLOCK_TOKENS


class HeldBlocks:
    """Gives sequences blocks of the pool and takes them back, in each group of layers.

    With the prefix cache a new sequence reuses the full blocks that are known, and a copy of the
    block in which its text and a known one diverge. Where layers have a recurrent state it starts
    from a snapshot instead of that copy. Blocks that leave a sliding window return to the pool
    after the step that computed the last token to attend to them.
    """

    def __init__(
        self,
        pool: BlockPool,
        windows: Windows,
        *,
        max_seqs: int,
        max_model_len: int,
        prefix_cache: bool,
        states: NoStates | None = None,
        store: NoStore | None = None,
    ) -> None:
        self._pool = pool
        self._windows = windows
        self._prefix_cache = prefix_cache
        self.states = states or NoStates()
        self.store = store or NoStore()
        # One row for each running sequence, which changes only when its blocks do.
        self.n_groups = len(windows.of)
        shape = max_seqs, self.n_groups, blocks_for(max_model_len)
        self.tables = np.zeros(shape, dtype=np.uint32)
        self.free_rows = list(range(max_seqs))
        self._coming: dict[Key, Scheduled] = {}  # blocks of prompts that are being computed
        self._copies: list[BlockCopy] = []  # not made yet, in this order

    def find_prefix(self, sequence: Scheduled) -> Prefix | None:
        """What the cache holds of a sequence; None if more of it is being computed or read."""
        if not self._prefix_cache or sequence.n_reusable < 1:
            return no_prefix(self._windows)
        if self.store.holds(sequence):
            return None
        n_stored = self.store.n_alike(sequence)
        return self.states.find_prefix(sequence, self._pool, self._windows, self._coming, n_stored)

    def n_lacking(self, sequence: Scheduled, prefix: Prefix, n_running: int) -> int:
        """Blocks that must be free for a sequence to start beside ``n_running`` others."""
        lacking = 0
        for group, found in enumerate(prefix.groups):
            first = prefix.first_of(found)
            lacking += self._windows.of[group].end_block(len(sequence.tokens), first)
            lacking -= prefix.n_full
            lacking += sum(map(self._pool.is_free, found.blocks))
        # One spare block for each running sequence, so that admission does not soon cause a
        # preemption.
        return lacking + n_running * self.n_groups

    def n_freed(self, sequence: Scheduled) -> int:
        """Blocks that would become free if a sequence gave its own back."""
        return sum(self._pool.n_freed(table.blocks) for table in sequence.tables)

    def begin(self, sequence: Scheduled, prefix: Prefix) -> None:
        """Give a sequence a row and its first blocks."""
        self.store.leave(sequence)
        sequence.table_row = self.free_rows.pop()
        for found in prefix.groups:
            self._pool.share(found.blocks)
            first = prefix.first_of(found)
            table = BlockTable([NO_BLOCK] * first + list(found.blocks), first)
            self.tables[sequence.table_row, len(sequence.tables), : prefix.n_full] = table.blocks
            sequence.tables.append(table)
        sources = [found.like_next for found in prefix.groups] if prefix.n_common else []
        self.give(sequence, len(sequence.tokens), sources)
        for table, source in zip(sequence.tables, sources, strict=False):
            # Also if the source is given away right here: the copy is made before the step writes.
            if source != table.blocks[prefix.n_full]:
                self._copies.append((source, table.blocks[prefix.n_full]))
        sequence.n_cached = prefix.n_cached
        sequence.n_kept = prefix.n_full
        self.states.begin(sequence, prefix)
        if self._prefix_cache:
            for index in range(prefix.n_full, len(sequence.tokens) // BLOCK_TOKENS):
                self._coming.setdefault(sequence.block_key(index), sequence)

    def n_missing(self, sequence: Scheduled, n_tokens: int) -> int:
        """Blocks that a sequence of ``n_tokens`` tokens may need and does not have."""
        if n_tokens <= sequence.n_room:
            return 0
        return sum(
            max(0, window.end_block(n_tokens, table.n_dropped) - len(table.blocks))
            for window, table in zip(self._windows.of, sequence.tables, strict=True)
        )

    def give(self, sequence: Scheduled, n_tokens: int, sources: Sequence[int] = ()) -> None:
        """Give a sequence of ``n_tokens`` tokens its blocks, or none if too few are free.

        ``sources`` has the block to be copied into the first new block of each group. If that
        source is given away right here, it becomes that first block itself: as the target of
        another group's copy it would be overwritten before it is read.
        """
        taken = self._pool.allocate(self.n_missing(sequence, n_tokens))
        own = set(sources).intersection(taken) if sources else set()
        others = iter([block for block in taken if block not in own])
        for group, (window, table) in enumerate(
            zip(self._windows.of, sequence.tables, strict=True)
        ):
            first = len(table.blocks)
            count = max(0, window.end_block(n_tokens, table.n_dropped) - first)
            if sources and sources[group] in own:
                table.blocks.append(sources[group])
                count -= 1
            table.blocks += islice(others, count)
            row = self.tables[sequence.table_row, group]
            row[first : len(table.blocks)] = table.blocks[first:]
        least = min(len(table.blocks) for table in sequence.tables)
        sequence.n_room = least * BLOCK_TOKENS

    def note_computed(self, sequence: Scheduled, end: int) -> None:
        """The first ``end`` tokens of a sequence are now in its blocks."""
        if self._prefix_cache and not sequence.is_hidden:
            if end >= (sequence.n_kept + 1) * BLOCK_TOKENS:
                self._keep_full_blocks(sequence, end)
            if end == sequence.n_prompt and not self.states.exist:  # unusable with states
                self._keep_begun_block(sequence, end)
        for group, window in enumerate(self._windows.of):
            if window.size is not None:
                self._drop_unseen(sequence, group, window.first_block(end))

    def hide(self, sequence: Scheduled) -> None:
        """Remove the sequence's blocks, shared ones included, from the prefix index."""
        sequence.is_hidden = True
        self.states.hide(sequence)
        for table in sequence.tables:
            for block in table.blocks:
                self._pool.forget(block)

    def release(self, sequence: Scheduled) -> None:
        """Take back a sequence's blocks and its row."""
        if self._prefix_cache:
            if not sequence.is_hidden and not self.states.exist:
                self._keep_begun_block(sequence, min(sequence.n_cached, len(sequence.tokens)))
            for index in range(sequence.n_kept, len(sequence.tokens) // BLOCK_TOKENS):
                self._forget_coming(sequence, sequence.block_key(index))
        self.states.leave(sequence)
        for table in sequence.tables:
            blocks = table.blocks[table.n_dropped :]
            self._pool.release(blocks, first=sequence.request.is_background)
        sequence.tables = []
        sequence.n_room = 0
        self.free_rows.append(sequence.table_row)

    def take_copies(self) -> list[BlockCopy]:
        """The copies of blocks that the next step makes first, each returned once.

        A copy may read what an earlier one has written, so all must be made, in order.
        """
        copies, self._copies = self._copies, []
        return copies

    def give_back(self, copies: list[BlockCopy]) -> None:
        """Queue copies again for the next step: the step that took them did nothing."""
        self._copies = copies + self._copies

    def note_copied(self, copies: Sequence[StateCopy]) -> None:
        """A step has made these copies of states."""
        if copies:
            self.states.snapshots.note_made(copies)
            self.store.note_copied()

    def _keep_full_blocks(self, sequence: Scheduled, end: int) -> None:
        for index in range(sequence.n_kept, end // BLOCK_TOKENS):
            key = sequence.block_key(index)
            self._keep(sequence, index, key, end)
            self._forget_coming(sequence, key)
        sequence.n_kept = end // BLOCK_TOKENS

    def _keep_begun_block(self, sequence: Scheduled, end: int) -> None:
        """Make a block that is not full findable, with the tokens that it has."""
        if end > sequence.n_kept * BLOCK_TOKENS:
            self._keep(sequence, sequence.n_kept, None, end)

    def _keep(self, sequence: Scheduled, index: int, key: Key | None, end: int) -> None:
        tokens = sequence.block_tokens(index)[: end - index * BLOCK_TOKENS]
        before = sequence.key_before(index)
        for group, table in enumerate(sequence.tables):
            key_here = None if key is None else key_in_group(key, group)
            self._pool.keep(table.blocks[index], key_here, key_in_group(before, group), tokens)
            if key_here is not None:
                self.store.note_kept(key_here, table.blocks[index])

    def _forget_coming(self, sequence: Scheduled, key: Key) -> None:
        if self._coming.get(key) is sequence:
            del self._coming[key]

    def _drop_unseen(self, sequence: Scheduled, group: int, first: int) -> None:
        """Give back a group's blocks before index ``first``: no token attends to them any more."""
        table = sequence.tables[group]
        if first > table.n_dropped:
            here = slice(table.n_dropped, first)
            self._pool.release(table.blocks[here], first=sequence.request.is_background)
            table.blocks[here] = [NO_BLOCK] * (first - table.n_dropped)
            self.tables[sequence.table_row, group, here] = NO_BLOCK
            table.n_dropped = first
