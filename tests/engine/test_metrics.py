"""Buckets of the histograms."""

import pytest
from prometheus_client import CollectorRegistry

from lanewise.engine.metrics import STEP_TOKEN_BUCKETS, CountedHistogram, size_buckets
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
    def samples(count):
        registry = CollectorRegistry()
        histogram = CountedHistogram("x", "X.", ["of"], buckets=(1, 2), registry=registry)
        count(histogram.labels("a"))
        values = [(s.name, s.labels, s.value) for m in registry.collect() for s in m.samples]
        return [one for one in values if one[0] != "x_created"]

    at_once = samples(lambda histogram: histogram.observe_times(amount, 3))
    assert at_once == samples(lambda histogram: [histogram.observe(amount) for _ in range(3)])
    assert ("x_count", {"of": "a"}, 3.0) in at_once
