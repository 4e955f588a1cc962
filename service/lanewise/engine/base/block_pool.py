"""Which blocks of the KV cache are free, in use or kept for reuse. No bytes: the runtime has them.

A full block has a key: a digest of all tokens up to its end, the request's salt and its adapter.
Equal keys mean equal keys and values, bit for bit. A block is also listed under the key of the
block before it: if another text goes on there with some of the same tokens, these can be copied. A
block stays findable after its last user has gone, until its memory is needed; the block that has
been free longest is reused first.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import islice

from lanewise.engine.base.picture import NAME_BYTES
from lanewise.runtime import BLOCK_TOKENS

Key = bytes
BlockCopy = tuple[int, int]  # from, to

NO_BLOCK = 2**32 - 1  # a block that a sequence has given back; larger than any cache
TOKENS_END = 2**32
MAX_COMPARED = 16  # blocks after the same text that one search compares, newest first


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free."""


def blocks_for(n_tokens: int) -> int:
    """Blocks that hold ``n_tokens`` tokens."""
    return -(-n_tokens // BLOCK_TOKENS)


def first_key(salt: str, adapter: bytes = b"") -> Key:
    """The key that stands before the first block, for this salt and this adapter's key."""
    return blake2b(salt.encode("utf-8", "surrogatepass"), key=adapter, digest_size=16).digest()


def next_key(before: Key, tokens: Sequence[int]) -> Key:
    """The key of a full block, given the key of the block before it."""
    if max(tokens) < TOKENS_END:
        packed = array("I", tokens).tobytes()
    else:  # names of rows of pictures among them; no other block has as many bytes
        packed = b"".join(token.to_bytes(NAME_BYTES, "little") for token in tokens)
    return blake2b(packed, key=before, digest_size=16).digest()


def key_in_group(key: Key, group: int) -> Key:
    """The key of the block of one group of layers for the text with this ``key``."""
    return bytes((group,)) + key if group else key


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common prefix of two token lists."""
    for place, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return place
    return min(len(a), len(b))


class BlockPool:
    """The blocks 0 … n_blocks-1; each is free or belongs to one sequence or several."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self._users = [0] * n_blocks
        self._free = OrderedDict.fromkeys(range(n_blocks))  # reused from the front
        # The same of blocks that are reused before all others that can be found.
        self._free_first = OrderedDict[int, None]()
        self._key_of: dict[int, Key] = {}
        self._block_of: dict[Key, int] = {}
        # By block; with the key of the block before.
        self._tokens_of: dict[int, tuple[Key, Sequence[int]]] = {}
        self._behind: dict[Key, dict[int, None]] = {}  # blocks that follow a key, latest last

    @property
    def n_free(self) -> int:
        """Blocks that no sequence uses."""
        return len(self._free) + len(self._free_first)

    @property
    def n_used(self) -> int:
        """Blocks that belong to sequences."""
        return self.n_blocks - self.n_free

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` free blocks to write to, or raise OutOfBlocksError and take none."""
        if count > self.n_free:
            raise OutOfBlocksError(f"{count} blocks asked for, {self.n_free} are free")
        taken = [self._next_free() for _ in range(count)]
        for block in taken:
            self._users[block] = 1
            self.forget(block)
        return taken

    def _next_free(self) -> int:
        if self._free_first:
            block = next(iter(self._free), None)
            if block is None or block in self._tokens_of:
                return self._free_first.popitem(last=False)[0]
        return self._free.popitem(last=False)[0]

    def forget(self, block: int) -> None:
        """Remove a block from the index, even while sequences use it."""
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._block_of[key]
        before, _ = self._tokens_of.pop(block, (None, ()))
        if before is not None:
            behind = self._behind[before]
            del behind[block]
            if not behind:
                del self._behind[before]

    def find(self, key: Key) -> int | None:
        """The block with this key, used or free."""
        return self._block_of.get(key)

    def find_alike(self, before: Key, tokens: Sequence[int]) -> tuple[int, int]:
        """The block after ``before`` that shares most first tokens with ``tokens``; how many."""
        best = (0, 0)
        for block in islice(reversed(self._behind.get(before, {})), MAX_COMPARED):
            n_common = common_length(self._tokens_of[block][1], tokens)
            if n_common > best[1]:
                best = (block, n_common)
        return best

    def is_free(self, block: int) -> bool:
        """Whether no sequence uses a block."""
        return self._users[block] == 0

    def n_freed(self, blocks: Sequence[int]) -> int:
        """How many of a sequence's blocks would become free if it gave them back."""
        return sum(block != NO_BLOCK and self._users[block] == 1 for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Add a user to blocks that were found."""
        for block in blocks:
            if self._users[block] == 0:
                del (self._free_first if block in self._free_first else self._free)[block]
            self._users[block] += 1

    def keep(self, block: int, key: Key | None, before: Key, tokens: Sequence[int]) -> None:
        """Make a block findable by its contents; of equal full blocks the first stays in the index.

        ``before`` is the key of the block before it. ``key`` is None while the block is not full. A
        later call for the same block, with more tokens, replaces the earlier one.
        """
        if key in self._block_of:
            return
        if key is not None:
            self._block_of[key] = block
            self._key_of[block] = key
        self._tokens_of[block] = (before, tokens)
        self._behind.setdefault(before, {})[block] = None

    def release(self, blocks: Sequence[int], *, first: bool = False) -> None:
        """Give back the blocks of one sequence, listed in text order.

        They are reused ``first`` of those that can be found, or when they have been free longest.
        """
        # the end first: more texts share the beginning, so it stays longer
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                is_known = block in self._tokens_of
                (self._free_first if first and is_known else self._free)[block] = None
                if not is_known:
                    self._free.move_to_end(block, last=False)  # still warm in the CPU's cache
