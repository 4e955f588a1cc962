"""Looks for the beginning of a sequence among the blocks that others have left or are computing."""

from collections.abc import Container
from dataclasses import dataclass

from lanewise.engine.block_pool import BlockPool, Key
from lanewise.engine.sequence import Sequence
from lanewise.engine.window import Window
from lanewise.runtime import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the cache holds of the beginning of a sequence."""

    n_full: int = 0  # blocks that need not be computed
    blocks: tuple[int, ...] = ()  # the last ones of them: those that the tokens after them see
    like_next: int = 0  # a block that begins as the one after them does
    n_common: int = 0  # with so many tokens

    @property
    def first(self) -> int:
        """The index of the first of ``blocks`` in the sequence."""
        return self.n_full - len(self.blocks)

    @property
    def n_cached(self) -> int:
        """Tokens that need not be computed."""
        return self.n_full * BLOCK_TOKENS + self.n_common


def find_prefix(
    sequence: Sequence, pool: BlockPool, window: Window, coming: Container[Key]
) -> Prefix | None:
    """What the cache holds of a sequence.

    None if a running sequence is about to fill the next block, whose key is then in ``coming``:
    waiting for that block saves computing it twice.
    """
    # The last token is computed in any case: what comes after it is asked for.
    n_usable = len(sequence.tokens) - 1
    most = n_usable // BLOCK_TOKENS
    n_full, found = _find_full_blocks(sequence, most, pool, window)
    if n_full < most and sequence.block_key(n_full) in coming:
        return None
    rest = sequence.block_tokens(n_full)[: n_usable - n_full * BLOCK_TOKENS]
    like_next, n_common = pool.find_alike(sequence.key_before(n_full), rest)
    n_seen = n_full - window.first_block(n_full * BLOCK_TOKENS + n_common)
    return Prefix(n_full, tuple(found[len(found) - n_seen :]), like_next, n_common)


def _find_full_blocks(
    sequence: Sequence, most: int, pool: BlockPool, window: Window
) -> tuple[int, list[int]]:
    """The number of blocks behind which a sequence can go on, and those of them that it then sees.

    Of a window, only these need to be there, so they are looked for from the end on.
    """
    found: list[int] = []
    if window.size is None:
        for index in range(most):
            block = pool.find(sequence.block_key(index))
            if block is None:
                break
            found.append(block)
        return len(found), found
    n_full = index = most
    while index > window.first_block(n_full * BLOCK_TOKENS):
        index -= 1
        block = pool.find(sequence.block_key(index))
        if block is None:
            n_full, found = index, []
        else:
            found.append(block)
    return n_full, found[::-1]
