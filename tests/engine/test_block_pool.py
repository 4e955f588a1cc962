"""Blocks are free or used, never both."""

import pytest

from lanewise.engine.block_pool import BlockPool, OutOfBlocksError, blocks_for


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
