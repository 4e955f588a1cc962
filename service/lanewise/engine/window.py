"""Which blocks of a sequence are needed when its tokens see only the last ones before them.

Layers of one window are a group, with blocks of its own (``lw_kv_layout``): what has slid out of
the window no layer of the group reads again.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from lanewise.engine.block_pool import blocks_for
from lanewise.runtime import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Window:
    """What tokens see in one group of layers, and what a sequence therefore holds of the cache."""

    size: int | None  # tokens that each sees, its own included; None = all
    # Of one sequence that are run at most between the steps after which blocks are given back.
    step_tokens: int

    def first_block(self, position: int) -> int:
        """The first block that the token at ``position`` or any later one sees."""
        return 0 if self.size is None else max(0, position + 1 - self.size) // BLOCK_TOKENS

    def end_block(self, n_tokens: int, first: int) -> int:
        """The index after the last block that a sequence may hold when ``first`` is its first.

        Blocks go up to its last token, but span at most the window and ``step_tokens``. Most steps
        need fewer; the most are reserved when a sequence is admitted, so that no running sequence
        has to be preempted when the window of another one moves on.
        """
        end = blocks_for(n_tokens)
        if self.size is None:
            return end
        # The first token that a step sees may be the last one of its block.
        return min(end, first + blocks_for(BLOCK_TOKENS - 1 + self.size - 1 + self.step_tokens))

    def most_blocks(self, n_tokens: int) -> int:
        """Blocks that a sequence of ``n_tokens`` holds at most, at any time of its life."""
        return self.end_block(n_tokens, 0)


@dataclass(frozen=True, slots=True)
class Windows:
    """Those of all groups of layers."""

    of: tuple[Window, ...]

    @classmethod
    def for_steps(cls, sizes: Iterable[int | None], max_step_tokens: int) -> Self:
        """Of groups with windows of these sizes, when a step has at most so many tokens.

        A step may be begun while the one before it runs, whose blocks are given back later.
        """
        return cls(tuple(Window(size, 2 * max_step_tokens) for size in sizes))

    @property
    def widest(self) -> int | None:
        """Tokens that a token sees in the group where it sees most; None = all."""
        sizes = [window.size for window in self.of]
        return None if None in sizes else max(size for size in sizes if size is not None)

    def seen(self, context: int) -> int:
        """How many of the ``context`` tokens before it a token sees in some layer, within one."""
        widest = self.widest
        return context if widest is None else min(context, widest)

    def most_blocks(self, n_tokens: int) -> int:
        """Blocks that a sequence of ``n_tokens`` holds at most in all groups."""
        return sum(window.most_blocks(n_tokens) for window in self.of)

    def longest(self, n_blocks: int, n_tokens: int) -> int:
        """Tokens of the longest sequence that ``n_blocks`` are enough for, ``n_tokens`` at most."""

        def most_at(full: int) -> int:
            return self.most_blocks(full * BLOCK_TOKENS)

        full = bisect_right(range(blocks_for(n_tokens) + 1), n_blocks, key=most_at) - 1
        return min(n_tokens, full * BLOCK_TOKENS)
