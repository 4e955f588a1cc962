"""Buckets of the histograms."""

from lanewise.engine.metrics import STEP_TOKEN_BUCKETS, size_buckets


def test_sizes_go_up_in_ones_twos_and_fives():
    assert size_buckets(60) == (1, 2, 5, 10, 20, 50)
    assert size_buckets(1) == (1,)
    assert size_buckets(100)[-1] == 100


def test_step_tokens_are_counted_in_powers_of_two():
    assert STEP_TOKEN_BUCKETS[:3] == (1, 8, 16)
    assert STEP_TOKEN_BUCKETS[-1] == 16384
