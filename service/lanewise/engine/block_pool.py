"""Which blocks of the KV cache are free, used or worth keeping: the bytes are the runtime's.

A full block has a key: a digest of all tokens up to its end (and of the request's salt and
adapter), so equal keys mean equal keys and values, bit for bit. Any block can also be found by what
comes before it; what its tokens have in common with others that come next can then be copied. A
block that can be found stays readable after its last user is gone, until its place is needed; the
one that was free longest goes first.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Items
from hashlib import blake2b
from itertools import islice

from lanewise.runtime import BLOCK_TOKENS

Key = bytes
BlockCopy = tuple[int, int]  # from, to

NO_BLOCK = 2**32 - 1  # in the place of one that a sequence has no more; no cache has so many
MAX_COMPARED = 16  # blocks behind the same text that one search compares, the latest kept


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free."""


def blocks_for(n_tokens: int) -> int:
    """Blocks that hold ``n_tokens`` tokens."""
    return -(-n_tokens // BLOCK_TOKENS)


def first_key(salt: str, adapter: bytes = b"") -> Key:
    """What comes before the first block of requests with this salt and this adapter's key."""
    return blake2b(salt.encode("utf-8", "surrogatepass"), key=adapter, digest_size=16).digest()


def next_key(before: Key, tokens: Items[int]) -> Key:
    """The key of a full block, given that of the block before it."""
    return blake2b(array("I", tokens).tobytes(), key=before, digest_size=16).digest()


def key_in_group(key: Key, group: int) -> Key:
    """The key of the block that holds in one group of layers what ``key`` stands for."""
    return bytes((group,)) + key if group else key


def common_length(a: Items[int], b: Items[int]) -> int:
    """How many tokens two texts begin with alike."""
    for place, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return place
    return min(len(a), len(b))


class BlockPool:
    """The blocks 0 … n_blocks-1; each is free or belongs to one sequence or several."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self._users = [0] * n_blocks
        self._free = OrderedDict.fromkeys(range(n_blocks))  # the next to be taken first
        self._key_of: dict[int, Key] = {}
        self._block_of: dict[Key, int] = {}
        self._tokens_of: dict[int, tuple[Key, Items[int]]] = {}  # and the key of the block before
        self._behind: dict[Key, dict[int, None]] = {}  # blocks that follow a key, latest kept last

    @property
    def n_free(self) -> int:
        """Blocks that no sequence uses."""
        return len(self._free)

    @property
    def n_used(self) -> int:
        """Blocks that belong to sequences."""
        return self.n_blocks - len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks to write to, or raise OutOfBlocksError and take none."""
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} blocks asked for, {len(self._free)} are free")
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._users[block] = 1
            self.forget(block)
        return taken

    def forget(self, block: int) -> None:
        """Let a block be found no more, even while sequences use it."""
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

    def find_alike(self, before: Key, tokens: Items[int]) -> tuple[int, int]:
        """The block behind ``before`` that begins with most of ``tokens``, and with how many."""
        best = (0, 0)
        for block in islice(reversed(self._behind.get(before, {})), MAX_COMPARED):
            n_common = common_length(self._tokens_of[block][1], tokens)
            if n_common > best[1]:
                best = (block, n_common)
        return best

    def is_free(self, block: int) -> bool:
        """Whether no sequence uses a block."""
        return self._users[block] == 0

    def n_freed(self, blocks: Items[int]) -> int:
        """How many of these blocks of a sequence would be free if it gave them back."""
        return sum(block != NO_BLOCK and self._users[block] == 1 for block in blocks)

    def share(self, blocks: Items[int]) -> None:
        """Use blocks that were found, beside their other users."""
        for block in blocks:
            if self._users[block] == 0:
                del self._free[block]
            self._users[block] += 1

    def keep(self, block: int, key: Key | None, before: Key, tokens: Items[int]) -> None:
        """Let a block be found by what it holds; of equal full ones the first is.

        ``before`` is the key of the block before it; ``key`` is None if it is not full yet. Said
        again of a block that has more tokens now, the last word counts.
        """
        if key in self._block_of:
            return
        if key is not None:
            self._block_of[key] = block
            self._key_of[block] = key
        self._tokens_of[block] = (before, tokens)
        self._behind.setdefault(before, {})[block] = None

    def release(self, blocks: Items[int]) -> None:
        """Give the blocks of one sequence back, in its order."""
        for block in reversed(blocks):  # the end of a text is of use to fewer than its beginning
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free[block] = None
                if block not in self._tokens_of:
                    self._free.move_to_end(block, last=False)  # and is warm
