"""Looks up the beginning of a sequence among cached blocks and blocks being computed."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Protocol

from lanewise.engine.base.block_pool import BlockPool, Key, key_in_group
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.window import Window, Windows
from lanewise.runtime import BLOCK_TOKENS


class Blocks(Protocol):
    """Where blocks are looked up."""

    def find(self, key: Key) -> int | None:
        """The block with this key."""


@dataclass(frozen=True, slots=True)
class GroupPrefix:
    """The cached blocks of a sequence's beginning in one group of layers."""

    blocks: tuple[int, ...] = ()  # the last full blocks: those that later tokens attend to
    like_next: int = 0  # a block to copy, whose first tokens equal the sequence's next ones


@dataclass(frozen=True, slots=True)
class Prefix:
    """The cached part of the beginning of a sequence."""

    groups: tuple[GroupPrefix, ...]
    n_full: int = 0  # full blocks, the same number in each group
    n_common: int = 0  # tokens after the full blocks that can be copied from ``like_next``
    n_alike: int = 0  # cached full blocks, with or without a state (engine/kv/states.py)

    def first_of(self, group: GroupPrefix) -> int:
        """The index in the sequence of a group's first block."""
        return self.n_full - len(group.blocks)

    @property
    def n_cached(self) -> int:
        """Tokens that need not be computed."""
        return self.n_full * BLOCK_TOKENS + self.n_common


def no_prefix(windows: Windows) -> Prefix:
    """The prefix of a sequence of which nothing is cached."""
    return Prefix((GroupPrefix(),) * len(windows.of))


def find_prefix(
    sequence: Scheduled, pool: BlockPool, windows: Windows, coming: Container[Key]
) -> Prefix | None:
    """The longest beginning of a sequence that all groups of layers have in the cache.

    None if a running sequence is about to fill the next block, whose key is then in ``coming``:
    waiting for that block avoids computing it twice.
    """
    n_usable = sequence.n_reusable
    most = n_usable // BLOCK_TOKENS
    n_full, found = find_in_all(sequence, most, pool, windows)
    if n_full < most and sequence.block_key(n_full) in coming:
        return None
    before = sequence.key_before(n_full)
    rest = sequence.block_tokens(n_full)[: n_usable - n_full * BLOCK_TOKENS]
    alike = [pool.find_alike(key_in_group(before, group), rest) for group in range(len(windows.of))]
    n_common = min(n for _, n in alike)
    groups = []
    for window, blocks, (like_next, _) in zip(windows.of, found, alike, strict=True):
        n_seen = n_full - window.first_block(n_full * BLOCK_TOKENS + n_common)
        groups.append(GroupPrefix(tuple(blocks[len(blocks) - n_seen :]), like_next))
    return Prefix(tuple(groups), n_full, n_common)


def find_in_all(
    sequence: Scheduled, most: int, pool: Blocks, windows: Windows
) -> tuple[int, list[list[int]]]:
    """How many full blocks all groups have, and the blocks that each group needs of them."""
    n_full = most
    found: list[list[int]] = [[] for _ in windows.of]
    plain = [group for group, window in enumerate(windows.of) if window.size is None]
    windowed = [group for group, window in enumerate(windows.of) if window.size is not None]
    for group in plain:
        found[group] = _find_from_start(sequence, group, n_full, pool)
        n_full = len(found[group])
    n_agree = 0
    while n_agree < len(windowed):
        group = windowed[n_agree]
        there, found[group] = _find_in_window(sequence, group, n_full, pool, windows.of[group])
        n_agree = n_agree + 1 if there == n_full else 0  # shorter now: all look again
        n_full = there
    for group in plain:  # a shorter text needs only the first of these blocks
        del found[group][n_full:]
    return n_full, found


def _find_from_start(sequence: Scheduled, group: int, most: int, pool: Blocks) -> list[int]:
    found: list[int] = []
    for index in range(most):
        block = pool.find(key_in_group(sequence.block_key(index), group))
        if block is None:
            break
        found.append(block)
    return found


def _find_in_window(
    sequence: Scheduled, group: int, most: int, pool: Blocks, window: Window
) -> tuple[int, list[int]]:
    """Find the last full blocks that fill a window, from the end; earlier ones are not needed."""
    found: list[int] = []
    n_full = index = most
    while index > window.first_block(n_full * BLOCK_TOKENS):
        index -= 1
        block = pool.find(key_in_group(sequence.block_key(index), group))
        if block is None:
            n_full, found = index, []
        else:
            found.append(block)
    return n_full, found[::-1]
