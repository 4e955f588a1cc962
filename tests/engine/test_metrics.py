"""Buckets of the histograms."""

from lanewise.engine.metrics import STEP_TOKEN_BUCKETS, size_buckets
from toy_server import make_engine


def test_sizes_go_up_in_ones_twos_and_fives():
    assert size_buckets(60) == (1, 2, 5, 10, 20, 50)
    assert size_buckets(1) == (1,)
    assert size_buckets(100)[-1] == 100


def test_step_tokens_are_counted_in_powers_of_two():
    assert STEP_TOKEN_BUCKETS[:3] == (1, 8, 16)
    assert STEP_TOKEN_BUCKETS[-1] == 16384


def test_load_is_what_the_metrics_say():
    engine, _ = make_engine()
    engine.metrics.prompt_tokens.inc(7)
    engine.metrics.kv_usage.set(0.5)
    load = engine.metrics.load()
    assert (load.prompt_tokens, load.generation_tokens, load.kv_usage) == (7, 0, 0.5)
