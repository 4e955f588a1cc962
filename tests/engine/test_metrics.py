"""Buckets of the histograms."""

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from lanewise.engine.metrics import STEP_TOKEN_BUCKETS, CountedHistogram, size_buckets
from lanewise.runtime import Counters
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


@pytest.mark.parametrize("amount", [0.0, 1.0, 1.5, 2.0, 3.0])
def test_a_value_counted_at_once_is_the_same_as_observed_again_and_again(amount):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    CountedHistogram("x", "X.", {"of": "a"}, (1, 2), ours).observe(amount, 3)
    plain = Histogram("x", "X.", ["of"], buckets=(1, 2), registry=theirs).labels("a")
    for _ in range(3):
        plain.observe(amount)
    assert generate_latest(ours) == generate_latest(theirs)
    assert ours.get_sample_value("x_count", {"of": "a"}) == 3


def test_experts_are_a_distribution_of_their_rows():
    engine, _ = make_engine()
    metrics = engine.metrics
    metrics.count_native(
        Counters(1, 9, 0, 0, 0, 0, experts_by_rows=(3, 0, 1, 0, 0, 0, 0, 1), expert_rows=79)
    )
    metrics.count_native(
        Counters(2, 9, 0, 0, 0, 0, experts_by_rows=(3, 2, 1, 0, 0, 0, 0, 1), expert_rows=83)
    )
    text = metrics.render().decode()
    found = [line.split()[-1] for line in text.splitlines() if "lanewise_expert_rows_" in line]
    assert found == ["3.0", "5.0", "6.0", "6.0", "6.0", "6.0", "6.0", "7.0", "7.0", "83.0"]
