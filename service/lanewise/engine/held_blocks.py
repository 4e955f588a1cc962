"""The blocks of the KV cache that running sequences hold, and what others find in them."""

from collections.abc import Sequence as Items
from itertools import islice

import numpy as np

from lanewise.engine.block_pool import (
    NO_BLOCK,
    BlockCopy,
    BlockPool,
    Key,
    blocks_for,
    key_in_group,
)
from lanewise.engine.prefix import Prefix, find_prefix, no_prefix
from lanewise.engine.sequence import BlockTable, Sequence
from lanewise.engine.states import States
from lanewise.engine.window import Windows
from lanewise.runtime import BLOCK_TOKENS


class HeldBlocks:
    """Gives sequences blocks of a pool and takes them back, in each group of layers.

    With the prefix cache a sequence begins behind the full blocks that are known already, and
    behind a copy of the block where its text and a known one part, or, where layers keep a state,
    behind a snapshot of that. Blocks that slide out of a
    window go back to the pool after the step that computed the last token to see them.
    """

    def __init__(
        self,
        pool: BlockPool,
        windows: Windows,
        *,
        max_seqs: int,
        max_model_len: int,
        prefix_cache: bool,
        states: States | None = None,
    ) -> None:
        self._pool = pool
        self._windows = windows
        self._prefix_cache = prefix_cache
        self.states = states  # of models that have any
        # Each running sequence has a row, which changes only when it gets or loses a block.
        self.n_groups = len(windows.of)
        shape = max_seqs, self.n_groups, blocks_for(max_model_len)
        self.tables = np.zeros(shape, dtype=np.uint32)
        self.free_rows = list(range(max_seqs))
        self._coming: dict[Key, Sequence] = {}  # blocks of prompts that are being computed
        self._copies: list[BlockCopy] = []  # not made yet, in this order

    def find_prefix(self, sequence: Sequence) -> Prefix | None:
        """What the cache holds of a sequence; None if more of it is just computed."""
        if not self._prefix_cache or sequence.is_scoring:  # which needs all its logits
            return no_prefix(self._windows)
        if self.states is not None:
            return self.states.find_prefix(sequence, self._pool, self._windows, self._coming)
        return find_prefix(sequence, self._pool, self._windows, self._coming)

    def n_lacking(self, sequence: Sequence, prefix: Prefix, n_running: int) -> int:
        """Blocks that must be free for a sequence to begin beside so many others."""
        lacking = 0
        for group, found in enumerate(prefix.groups):
            first = prefix.first_of(found)
            lacking += self._windows.of[group].end_block(len(sequence.tokens), first)
            lacking -= prefix.n_full
            lacking += sum(map(self._pool.is_free, found.blocks))
        # One block beside for each running sequence: admitting one must not soon evict another.
        return lacking + n_running * self.n_groups

    def n_freed(self, sequence: Sequence) -> int:
        """Blocks that would be free if a sequence gave its own back."""
        return sum(self._pool.n_freed(table.blocks) for table in sequence.tables)

    def begin(self, sequence: Sequence, prefix: Prefix) -> None:
        """Give a sequence a row and its first blocks."""
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
            # Even if the block copied from is given away right here: copies come before the step.
            if source != table.blocks[prefix.n_full]:
                self._copies.append((source, table.blocks[prefix.n_full]))
        sequence.n_cached = prefix.n_cached
        sequence.n_kept = prefix.n_full
        if self.states is not None:
            self.states.begin(sequence, prefix)
        if self._prefix_cache:
            for index in range(prefix.n_full, len(sequence.tokens) // BLOCK_TOKENS):
                self._coming.setdefault(sequence.block_key(index), sequence)

    def n_missing(self, sequence: Sequence, n_tokens: int) -> int:
        """Blocks that a sequence of so many tokens may need and has not got."""
        if n_tokens <= sequence.n_room:
            return 0
        return sum(
            max(0, window.end_block(n_tokens, table.n_dropped) - len(table.blocks))
            for window, table in zip(self._windows.of, sequence.tables, strict=True)
        )

    def give(self, sequence: Sequence, n_tokens: int, sources: Items[int] = ()) -> None:
        """Give a sequence of so many tokens the blocks that it may need, or none if one is out.

        ``sources`` are what the first new block of each group is to be a copy of. One that is given
        away right here becomes that block itself: as the target of another group's copy it would
        be written before it is read.
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

    def note_computed(self, sequence: Sequence, end: int) -> None:
        """The first ``end`` tokens of a sequence are in its blocks now."""
        if self._prefix_cache and not sequence.is_hidden:
            if end >= (sequence.n_kept + 1) * BLOCK_TOKENS:
                self._keep_full_blocks(sequence, end)
            if end == sequence.n_prompt and self.states is None:  # else it is of no use
                self._keep_begun_block(sequence, end)
        for group, window in enumerate(self._windows.of):
            if window.size is not None:
                self._drop_unseen(sequence, group, window.first_block(end))

    def hide(self, sequence: Sequence) -> None:
        """Remove the sequence's blocks, shared ones included, from the prefix index."""
        sequence.is_hidden = True
        if self.states is not None:
            self.states.hide(sequence)
        for table in sequence.tables:
            for block in table.blocks:
                self._pool.forget(block)

    def release(self, sequence: Sequence) -> None:
        """Take all blocks of a sequence back, and its row."""
        if self._prefix_cache:
            if not sequence.is_hidden and self.states is None:
                self._keep_begun_block(sequence, min(sequence.n_cached, len(sequence.tokens)))
            for index in range(sequence.n_kept, len(sequence.tokens) // BLOCK_TOKENS):
                self._forget_coming(sequence, sequence.block_key(index))
        if self.states is not None:
            self.states.leave(sequence)
        for table in sequence.tables:
            self._pool.release(table.blocks[table.n_dropped :])
        sequence.tables = []
        sequence.n_room = 0
        self.free_rows.append(sequence.table_row)

    def take_copies(self) -> list[BlockCopy]:
        """The copies of blocks that the next step makes before all else, each given out once.

        One may read what another has written: they are made in this order, all of them, once.
        """
        copies, self._copies = self._copies, []
        return copies

    def give_back(self, copies: list[BlockCopy]) -> None:
        """Have copies made by the next step, as the one that took them last did nothing."""
        self._copies = copies + self._copies

    def _keep_full_blocks(self, sequence: Sequence, end: int) -> None:
        for index in range(sequence.n_kept, end // BLOCK_TOKENS):
            key = sequence.block_key(index)
            self._keep(sequence, index, key, end)
            self._forget_coming(sequence, key)
        sequence.n_kept = end // BLOCK_TOKENS

    def _keep_begun_block(self, sequence: Sequence, end: int) -> None:
        """Let the block that is not full yet be found too, as far as it is filled."""
        if end > sequence.n_kept * BLOCK_TOKENS:
            self._keep(sequence, sequence.n_kept, None, end)

    def _keep(self, sequence: Sequence, index: int, key: Key | None, end: int) -> None:
        tokens = sequence.block_tokens(index)[: end - index * BLOCK_TOKENS]
        before = sequence.key_before(index)
        for group, table in enumerate(sequence.tables):
            key_here = None if key is None else key_in_group(key, group)
            self._pool.keep(table.blocks[index], key_here, key_in_group(before, group), tokens)

    def _forget_coming(self, sequence: Sequence, key: Key) -> None:
        if self._coming.get(key) is sequence:
            del self._coming[key]

    def _drop_unseen(self, sequence: Sequence, group: int, first: int) -> None:
        """Give back the blocks of a group before ``first``, which no token sees any more."""
        table = sequence.tables[group]
        if first > table.n_dropped:
            here = slice(table.n_dropped, first)
            self._pool.release(table.blocks[here])
            table.blocks[here] = [NO_BLOCK] * (first - table.n_dropped)
            self.tables[sequence.table_row, group, here] = NO_BLOCK
            table.n_dropped = first
