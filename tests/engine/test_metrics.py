"""What metrics say: vLLM's names with vLLM's meaning, buckets, times of tokens."""

import asyncio
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.metering.histograms import CountedHistogram, size_buckets
from lanewise.engine.metering.metrics import STEP_TOKEN_BUCKETS
from lanewise.engine.steps.tracking import JobGroup, Tally
from lanewise.runtime import Counters
from lanewise.text.grammar import GrammarCompiler, GrammarSource
from toy_server import make_engine, metric, outputs_of
from toy_tokenizer import toy_tokenizer


def test_sizes_go_up_in_ones_twos_and_fives():
    assert size_buckets(60) == (1, 2, 5, 10, 20, 50)
    assert size_buckets(1) == (1,)
    assert size_buckets(100)[-1] == 100


def test_step_tokens_are_counted_in_powers_of_two():
    assert STEP_TOKEN_BUCKETS[:3] == (1, 8, 16)
    assert STEP_TOKEN_BUCKETS[-1] == 16384


def test_load_is_what_the_metrics_say():
    engine, _ = make_engine()
    engine.metrics.count_prompts(2, 7)
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


def test_tokens_that_come_together_share_the_time_since():
    engine, _ = make_engine()
    metrics, tally = engine.metrics, Tally()
    group = JobGroup()
    group.stream = SimpleNamespace(moments=SimpleNamespace(first_token=None))
    job = SimpleNamespace(group=group, first_token=None, last_token=0.0, arrived=0.5)
    for count, now in ((3, 1.0), (4, 2.0), (1, 2.5)):
        tally.note_tokens(job, count, now, metrics)
    tally.publish(metrics)
    assert metric(engine, "vllm:time_to_first_token_seconds_sum") == 0.5
    # What came with the first token is no time after it.
    assert metric(engine, "vllm:inter_token_latency_seconds_count") == 5
    assert metric(engine, "vllm:inter_token_latency_seconds_sum") == 1.5
    labels = {"le": "0.2"}
    assert metric(engine, "vllm:inter_token_latency_seconds_bucket", **labels) == 0


def test_forced_tokens_share_the_time_of_the_drawn_ones(start, monkeypatch):
    noted = []
    own = Tally.note_tokens

    def note(tally, job, count, now, metrics):
        noted.append((job, now, count))
        own(tally, job, count, now, metrics)

    monkeypatch.setattr(Tally, "note_tokens", note)
    engine, _ = start()
    tokenizer = toy_tokenizer()
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size + len(tokenizer.unused_ids))
    schema = {"type": "object", "properties": {"a": {"enum": ["one thing", "one more"]}}}
    schema |= {"required": ["a"], "additionalProperties": False}
    grammar = compiler.compile(GrammarSource.from_json_schema(schema))
    params = SamplingParams(seed=1, max_tokens=60, stop_token_ids=tokenizer.eos_ids)
    asyncio.run(outputs_of(engine, GenerationRequest(list(b"abc"), params, grammar=grammar)))
    assert len({(job, now) for job, now, _ in noted}) == len(noted)
    assert sum(count for _, _, count in noted) == metric(engine, "vllm:generation_tokens_total")
    assert metric(engine, "lanewise_forced_tokens_total") > 10


def test_older_names_say_the_same(start):
    engine, _ = start()
    params = SamplingParams(seed=1, max_tokens=2)
    for _ in range(2):
        asyncio.run(outputs_of(engine, GenerationRequest([5] * 70, params)))
    asked, found = metric(engine, "vllm:prefix_cache_queries_total"), 69
    assert metric(engine, "vllm:gpu_prefix_cache_queries_total") == asked == 140
    assert metric(engine, "vllm:gpu_prefix_cache_hits_total") == found
    sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
    by_source = [metric(engine, "vllm:prompt_tokens_by_source_total", source=s) for s in sources]
    assert by_source == [140 - found, found, 0]
    assert metric(engine, "vllm:prompt_tokens_cached_total") == found
    assert metric(engine, "vllm:prompt_tokens_total") == 140
    for reason in ("capacity", "deferred"):
        assert metric(engine, "vllm:num_requests_waiting_by_reason", reason=reason) == 0
    share = metric(engine, "vllm:gpu_cache_usage_perc")
    assert share == metric(engine, "vllm:kv_cache_usage_perc")
    assert metric(engine, "lanewise_kv_blocks") > 0


def test_adapters_in_use_are_named_once_and_with_the_time():
    metrics = make_engine()[0].metrics
    for running, waiting in (("a", ""), ("a,b", "c")):
        metrics.set_adapters(running, waiting)
    (line,) = [
        line
        for line in metrics.render().decode().splitlines()
        if line.startswith("vllm:lora_requests_info{")
    ]
    assert 'running_lora_adapters="a,b",waiting_lora_adapters="c"' in line
    assert float(line.split()[-1]) > 1.6e9
