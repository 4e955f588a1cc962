"""Which blocks of the KV cache are free: numbers only, the bytes are the runtime's."""

from lanewise.runtime import BLOCK_TOKENS


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free."""


def blocks_for(n_tokens: int) -> int:
    """Blocks that hold ``n_tokens`` tokens."""
    return -(-n_tokens // BLOCK_TOKENS)


class BlockPool:
    """The blocks 0 … n_blocks-1; each is free or belongs to one sequence."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self._free = list(range(n_blocks - 1, -1, -1))  # a stack: recently used blocks are warm

    @property
    def n_free(self) -> int:
        """Blocks that nobody owns."""
        return len(self._free)

    @property
    def n_used(self) -> int:
        """Blocks that belong to sequences."""
        return self.n_blocks - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks, or raise OutOfBlocksError and take none."""
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} blocks asked for, {len(self._free)} are free")
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken

    def release(self, blocks: list[int]) -> None:
        """Give blocks back."""
        self._free.extend(blocks)
