"""Which KV blocks of a sequence are needed when its tokens attend only to the last ones.

Layers with the same window are a group with its own blocks (``lw_kv_layout``). No layer of the
group reads a block again that has left the window.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from lanewise.engine.base.block_pool import blocks_for
from lanewise.runtime import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Window:
    """The window of one group of layers, and the blocks that a sequence holds because of it."""

    size: int | None  # tokens that each token attends to, itself included; None = all
    # Most tokens of one sequence that run between two returns of blocks.
    step_tokens: int

    def first_block(self, position: int) -> int:
        """The first block that the token at ``position`` or a later one attends to."""
        return 0 if self.size is None else max(0, position + 1 - self.size) // BLOCK_TOKENS

    def end_block(self, n_tokens: int, first: int) -> int:
        """The index after the last block that a sequence may hold when ``first`` is its first.

        Blocks reach to its last token, but span at most the window and ``step_tokens``. Most steps
        need fewer. The maximum is reserved on admission, so that no running sequence is preempted
        when another one's window moves on.
        """
        end = blocks_for(n_tokens)
        if self.size is None:
            return end
        # The first token in the window may be the last one of its block.
        return min(end, first + blocks_for(BLOCK_TOKENS - 1 + self.size - 1 + self.step_tokens))

    def most_blocks(self, n_tokens: int) -> int:
        """The most blocks that a sequence of ``n_tokens`` ever holds."""
        return self.end_block(n_tokens, 0)


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of all groups of layers."""

    of: tuple[Window, ...]

    @classmethod
    def for_steps(cls, sizes: Iterable[int | None], max_step_tokens: int) -> Self:
        """Windows of these sizes, for steps of at most ``max_step_tokens`` tokens.

        A step may be begun while the one before it runs, whose blocks are given back later.
        """
        return cls(tuple(Window(size, 2 * max_step_tokens) for size in sizes))

    @property
    def widest(self) -> int | None:
        """Tokens that a token attends to in the widest group; None = all."""
        sizes = [window.size for window in self.of]
        return None if None in sizes else max(size for size in sizes if size is not None)

    def seen(self, context: int) -> int:
        """How many of its ``context`` predecessors a token attends to in some layer, within one."""
        widest = self.widest
        return context if widest is None else min(context, widest)

    def most_blocks(self, n_tokens: int) -> int:
        """The most blocks that a sequence of ``n_tokens`` holds in all groups together."""
        return sum(window.most_blocks(n_tokens) for window in self.of)

    def longest(self, n_blocks: int, n_tokens: int) -> int:
        """Length of the longest sequence that fits ``n_blocks``, ``n_tokens`` at most."""

        def most_at(full: int) -> int:
            return self.most_blocks(full * BLOCK_TOKENS)

        full = bisect_right(range(blocks_for(n_tokens) + 1), n_blocks, key=most_at) - 1
        return min(n_tokens, full * BLOCK_TOKENS)
