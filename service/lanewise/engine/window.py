"""Which blocks of a sequence are needed when its tokens see only the last ones before them.

A sliding window is one for all layers here, so what has slid out of it no layer reads again.
"""

from dataclasses import dataclass

from lanewise.engine.block_pool import blocks_for
from lanewise.runtime import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Window:
    """What tokens see, and what a sequence therefore holds of the KV cache."""

    size: int | None  # tokens that each sees, its own included; None = all
    step_tokens: int  # of one sequence that a step runs at most

    def seen(self, context: int) -> int:
        """How many of the ``context`` tokens before it a token sees, within one."""
        return context if self.size is None else min(context, self.size)

    def first_block(self, position: int) -> int:
        """The first block that the token at ``position`` or any later one sees."""
        return 0 if self.size is None else max(0, position + 1 - self.size) // BLOCK_TOKENS

    def end_block(self, n_tokens: int, first: int) -> int:
        """The index after the last block that a sequence may hold when ``first`` is its first.

        Blocks go up to its last token, but span at most the window and one step. Most steps need
        fewer; the most are reserved when a sequence is admitted, so that no running sequence has to
        be preempted when the window of another one moves on.
        """
        end = blocks_for(n_tokens)
        if self.size is None:
            return end
        # The first token that a step sees may be the last one of its block.
        return min(end, first + blocks_for(BLOCK_TOKENS - 1 + self.size - 1 + self.step_tokens))

    def most_blocks(self, n_tokens: int) -> int:
        """Blocks that a sequence of ``n_tokens`` holds at most, at any time of its life."""
        return self.end_block(n_tokens, 0)

    def longest(self, n_blocks: int, n_tokens: int) -> int:
        """Tokens of the longest sequence that ``n_blocks`` are enough for, ``n_tokens`` at most."""
        return n_tokens if self.most_blocks(n_tokens) <= n_blocks else n_blocks * BLOCK_TOKENS
