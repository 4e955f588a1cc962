"""Blocks are free or used, never both."""

import pytest

from lanewise.engine.base.block_pool import (
    MAX_COMPARED,
    BlockPool,
    OutOfBlocksError,
    blocks_for,
    first_key,
    next_key,
)


def test_blocks_are_given_once():
    pool = BlockPool(5)
    first, second = pool.allocate(2), pool.allocate(3)
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    with pytest.raises(OutOfBlocksError, match="1 blocks asked for, 0 are free"):
        pool.allocate(1)
    pool.release(first)
    assert (pool.n_free, pool.n_used) == (2, 3)
    assert sorted(pool.allocate(2)) == sorted(first)
    assert pool.allocate(0) == []


def test_a_block_holds_thirty_two_tokens():
    assert [blocks_for(n) for n in (0, 1, 32, 33)] == [0, 1, 1, 2]


def test_a_key_stands_for_all_tokens_before_and_the_salt():
    one, other = first_key(""), first_key("salt")
    tokens = list(range(32))
    keys = {one, other, next_key(one, tokens), next_key(other, tokens)}
    keys |= {next_key(one, tokens[::-1]), next_key(next_key(one, tokens), tokens)}
    assert len(keys) == 6
    assert next_key(one, tokens) == next_key(first_key(""), tokens)


def keep(pool: BlockPool, block: int, key: bytes | None, tokens=(), before: bytes = b"") -> None:
    pool.keep(block, key, before, list(tokens))


def test_a_kept_block_is_found_until_its_place_is_needed():
    pool = BlockPool(4)
    a, b, c = pool.allocate(3)
    for block in (a, b):
        keep(pool, block, bytes([block]))
    pool.release([a, b, c])
    assert pool.n_free == 4
    assert pool.is_free(a)
    pool.share([a])
    pool.share([a])
    assert (pool.n_free, pool.is_free(a)) == (3, False)
    pool.release([a])
    assert not pool.is_free(a)
    assert b not in pool.allocate(2)  # those that nobody can find go first
    assert pool.find(bytes([b])) == b
    assert pool.allocate(1) == [b]
    assert pool.find(bytes([b])) is None
    assert pool.find(bytes([a])) == a


def test_the_beginning_of_a_text_is_kept_longest():
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for place, block in enumerate(blocks):
        keep(pool, block, bytes([place]))
    pool.release(blocks)
    assert [pool.allocate(1)[0] for _ in blocks] == blocks[::-1]


def test_of_equal_blocks_the_first_is_found():
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    keep(pool, first, b"key")
    keep(pool, second, b"key")
    assert pool.find(b"key") == first
    pool.release([second])
    assert pool.allocate(1) == [second]
    assert pool.find(b"key") == first


def test_the_block_with_most_in_common_is_found_behind_the_same_text():
    pool = BlockPool(8)
    short, long, unlike, elsewhere = pool.allocate(4)
    keep(pool, short, None, [1, 2], b"a")
    keep(pool, long, b"full", [1, 2, 3, 4], b"a")
    keep(pool, unlike, None, [5], b"a")
    keep(pool, elsewhere, None, [1, 2, 3, 4, 5], b"b")
    assert pool.find_alike(b"a", [1, 2, 3, 9]) == (long, 3)
    assert pool.find_alike(b"a", [6])[1] == pool.find_alike(b"c", [1])[1] == 0
    pool.release([long, short, unlike, elsewhere])
    assert pool.find_alike(b"a", [1, 2, 3, 9]) == (long, 3)
    while pool.find(b"full") is not None:
        pool.allocate(1)
    assert pool.find_alike(b"a", [1, 2, 3, 9])[1] == 0


def test_a_block_found_before_it_was_full_is_found_by_its_key_after():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    keep(pool, block, None, [1, 2], b"a")
    keep(pool, block, b"full", [1, 2, 3], b"a")
    assert pool.find(b"full") == block
    assert pool.find_alike(b"a", [1, 2, 3, 4]) == (block, 3)
    pool.release([block])
    pool.allocate(2)
    assert (pool.find(b"full"), pool.find_alike(b"a", [1])[1]) == (None, 0)


def test_a_search_compares_the_latest_blocks_only():
    pool = BlockPool(MAX_COMPARED + 1)
    for block in pool.allocate(MAX_COMPARED + 1):
        keep(pool, block, None, [block], b"a")
    assert pool.find_alike(b"a", [0])[1] == 0
    assert pool.find_alike(b"a", [1]) == (1, 1)
