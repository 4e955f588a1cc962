"""The blocks of the KV cache that running sequences hold, and what others find in them."""

from collections.abc import Sequence as Items

import numpy as np

from lanewise.engine.block_pool import NO_BLOCK, BlockCopy, BlockPool, Key, blocks_for
from lanewise.engine.prefix import Prefix, find_prefix
from lanewise.engine.sequence import Sequence
from lanewise.engine.window import Window
from lanewise.runtime import BLOCK_TOKENS


class HeldBlocks:
    """Gives sequences blocks of a pool and takes them back.

    With the prefix cache a sequence begins behind the full blocks that are known already, and
    behind a copy of the block where its text and a known one part. Blocks that slide out of a
    sequence's window go back to the pool after the step that computed the last token to see them.
    """

    def __init__(
        self,
        pool: BlockPool,
        window: Window,
        *,
        max_seqs: int,
        max_model_len: int,
        prefix_cache: bool,
    ) -> None:
        self._pool = pool
        self._window = window
        self._prefix_cache = prefix_cache
        # Each running sequence has a row, which changes only when it gets or loses a block.
        self.tables = np.zeros((max_seqs, blocks_for(max_model_len)), dtype=np.uint32)
        self.free_rows = list(range(max_seqs))
        self._coming: dict[Key, Sequence] = {}  # blocks of prompts that are being computed
        self._copies: list[BlockCopy] = []  # not made yet, in this order

    def find_prefix(self, sequence: Sequence) -> Prefix | None:
        """What the cache holds of a sequence; None if more of it is just computed."""
        if not self._prefix_cache or sequence.is_scoring:  # which needs all its logits
            return Prefix()
        return find_prefix(sequence, self._pool, self._window, self._coming)

    def n_needed(self, sequence: Sequence, prefix: Prefix) -> int:
        """Blocks that a sequence is given when it begins behind ``prefix``."""
        return self._window.end_block(len(sequence.tokens), prefix.first) - prefix.n_full

    def n_lacking(self, sequence: Sequence, prefix: Prefix, n_running: int) -> int:
        """Blocks that must be free for a sequence to begin beside so many others."""
        revived = sum(map(self._pool.is_free, prefix.blocks))
        # One block beside for each running sequence: admitting one must not soon evict another.
        return self.n_needed(sequence, prefix) + revived + n_running

    def begin(self, sequence: Sequence, prefix: Prefix) -> None:
        """Give a sequence a row and its first blocks."""
        sequence.table_row = self.free_rows.pop()
        self._pool.share(prefix.blocks)
        self._append(sequence, [NO_BLOCK] * prefix.first)
        self._append(sequence, prefix.blocks)
        self.give(sequence, self.n_needed(sequence, prefix))
        if prefix.n_common:
            # Even if the block copied from is given away right here: copies come before the step.
            self._copies.append((prefix.like_next, sequence.blocks[prefix.n_full]))
        sequence.n_dropped = prefix.first
        sequence.n_cached = prefix.n_cached
        sequence.n_kept = prefix.n_full
        if self._prefix_cache:
            for index in range(prefix.n_full, len(sequence.tokens) // BLOCK_TOKENS):
                self._coming.setdefault(sequence.block_key(index), sequence)

    def give(self, sequence: Sequence, count: int) -> None:
        """Give a sequence more blocks."""
        self._append(sequence, self._pool.allocate(count))

    def note_computed(self, sequence: Sequence, end: int) -> None:
        """The first ``end`` tokens of a sequence are in its blocks now."""
        if self._prefix_cache:
            if end >= (sequence.n_kept + 1) * BLOCK_TOKENS:
                self._keep_full_blocks(sequence, end)
            if end == sequence.n_prompt:
                self._keep_begun_block(sequence, end)
        if self._window.size is not None:
            self._drop_unseen(sequence)

    def release(self, sequence: Sequence) -> None:
        """Take all blocks of a sequence back, and its row."""
        if self._prefix_cache:
            self._keep_begun_block(sequence, min(sequence.n_cached, len(sequence.tokens)))
            for index in range(sequence.n_kept, len(sequence.tokens) // BLOCK_TOKENS):
                self._forget_coming(sequence, sequence.block_key(index))
        self._pool.release(sequence.blocks[sequence.n_dropped :])
        sequence.blocks = []
        sequence.n_dropped = 0
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
        self._pool.keep(sequence.blocks[index], key, sequence.key_before(index), tokens)

    def _forget_coming(self, sequence: Sequence, key: Key) -> None:
        if self._coming.get(key) is sequence:
            del self._coming[key]

    def _append(self, sequence: Sequence, blocks: Items[int]) -> None:
        first = len(sequence.blocks)
        sequence.blocks += blocks
        self.tables[sequence.table_row, first : len(sequence.blocks)] = blocks

    def _drop_unseen(self, sequence: Sequence) -> None:
        """Give back the blocks that no token after those computed sees."""
        dropped = range(sequence.n_dropped, self._window.first_block(sequence.n_cached))
        if dropped:
            here = slice(dropped.start, dropped.stop)
            self._pool.release(sequence.blocks[here])
            sequence.blocks[here] = [NO_BLOCK] * len(dropped)
            self.tables[sequence.table_row, here] = NO_BLOCK
            sequence.n_dropped = dropped.stop
