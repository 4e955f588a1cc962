"""The engine with a toy model: same answers in any company, nothing lost, nothing leaked."""

import asyncio
import threading
import time
from dataclasses import replace

import pytest

import toy
from lanewise.engine.base.config import EngineConfig
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.stream import (
    EngineError,
    EngineStoppedError,
    NoTokenError,
    QueueFullError,
    TokenOutput,
)
from lanewise.engine.metering.failures import MAX_FAILURES
from lanewise.runtime import NONFINITE, NativeError, Sampled
from toy_server import metric, outputs_of


def request(prompt="abc", choice=0, **params) -> GenerationRequest:
    settings = {"seed": 1, "max_tokens": 20} | params
    return GenerationRequest(list(prompt.encode()), SamplingParams(**settings), choice)


def tokens(outputs: list[TokenOutput]) -> list[int]:
    return [output.sampled.token for output in outputs if output.sampled]


def test_long_preparation_leaves_the_event_loop_and_changes_nothing(start, monkeypatch):
    engine, _ = start()
    requests = [request("x" * 40, choice, logit_bias=((65, 1.0),)) for choice in range(8)]
    before = [tokens(one) for one in asyncio.run(outputs_of(engine, *requests))]
    make, threads = engine._maker.make, []

    def watched(*arguments):
        threads.append(threading.current_thread())
        return make(*arguments)

    monkeypatch.setattr(engine._maker, "make", watched)
    asyncio.run(outputs_of(engine, *requests))
    monkeypatch.setattr("lanewise.engine.engine.INLINE_WORK", 300)
    assert [tokens(one) for one in asyncio.run(outputs_of(engine, *requests))] == before
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


def test_answer_does_not_depend_on_batch_chunks_or_preemption(start):
    requests = [request("x" * (7 * i + 1), max_tokens=90, seed=i) for i in range(8)]
    calm, _ = start()
    alone = [asyncio.run(outputs_of(calm, one))[0] for one in requests]
    # 8 sequences of up to 140 tokens and 12 blocks of 32: they must take turns.
    crowded, _ = start(n_blocks=12, max_model_len=160, max_step_tokens=9, max_step_logits=8)

    async def together() -> list[list[list[TokenOutput]]]:
        return await asyncio.gather(*[outputs_of(crowded, one) for one in requests])

    crowd = asyncio.run(together())
    assert [tokens(outputs[0]) for outputs in crowd] == [tokens(outputs) for outputs in alone]
    assert metric(crowded, "vllm:num_preemptions_total") > 0
    computed = metric(crowded, "vllm:prompt_tokens_by_source_total", source="local_compute")
    reused = metric(crowded, "vllm:prefix_cache_hits_total")
    assert metric(crowded, "vllm:prompt_tokens_cached_total") == reused
    assert metric(crowded, "vllm:prompt_tokens_total") == computed + reused
    assert computed + reused == sum(len(r.prompt) for r in requests)
    assert reused == metric(crowded, "vllm:prefix_cache_queries_total") - computed > 0
    assert metric(crowded, "vllm:generation_tokens_total") == 8 * 90
    assert metric(crowded, "lanewise_kv_blocks_used") == 0


def test_scores_of_a_prompt_survive_preemption_and_chunks(start):
    engine, _ = start()
    wanted = {"prompt_logprobs": 2, "logprobs": 2, "max_tokens": 60}
    requests = [request("y" * 100, **wanted, seed=i) for i in range(4)]
    whole = [asyncio.run(outputs_of(engine, one))[0] for one in requests]
    crowded, _ = start(n_blocks=10, max_model_len=160, max_step_tokens=13, max_step_logits=8)
    crowd = asyncio.run(outputs_of(crowded, *requests))
    for one, other in zip(crowd, whole, strict=True):
        assert len(one[0].prompt_scores) == 99
        assert [replace(output, index=0) for output in one] == other


def test_seed_and_choice_are_the_key_of_a_draw(start):
    engine, _ = start()
    requests = [request(choice=c, seed=s) for c, s in [(0, 1), (1, 1), (0, 2), (0, 1)]]
    first, other_choice, other_seed, again = map(tokens, asyncio.run(outputs_of(engine, *requests)))
    assert first == again
    assert len({tuple(first), tuple(other_choice), tuple(other_seed)}) == 3


def test_unused_ids_are_never_drawn(start):
    engine, runner = start()
    unused = set(engine.config.unused_ids)
    runner._n_tokens = engine.config.vocab_size  # padding as likely as anything
    outputs = asyncio.run(outputs_of(engine, request(max_tokens=300, temperature=2.0)))
    assert unused
    assert not unused & set(tokens(outputs[0]))
    # Even for someone who allows nothing else but them and one token.
    odd = request(allowed_token_ids=(*unused, 65), max_tokens=5)
    assert tokens(asyncio.run(outputs_of(engine, odd))[0]) == [65] * 5


def test_penalties_see_the_tokens_so_far(start):
    engine, _ = start()
    greedy = tokens(asyncio.run(outputs_of(engine, request(temperature=0.0, max_tokens=60)))[0])
    unlike = request(temperature=0.0, max_tokens=60, presence_penalty=2.0, frequency_penalty=2.0)
    penalized = tokens(asyncio.run(outputs_of(engine, unlike))[0])
    assert len(set(penalized)) > len(set(greedy)) - 5
    assert penalized != greedy
    never_again = request(temperature=0.0, max_tokens=60, repetition_penalty=100.0)
    distinct = tokens(asyncio.run(outputs_of(engine, never_again))[0])
    assert len(set(distinct)) == 60


def test_leaving_the_block_aborts(start):
    engine, runner = start()

    async def leave() -> None:
        async with engine.submit([request(max_tokens=400)]) as stream:
            await anext(stream)
        assert stream.cancelled
        while engine.unfinished:  # noqa: ASYNC110 - the engine is another thread
            await asyncio.sleep(0.001)

    asyncio.run(leave())
    assert metric(engine, "lanewise_requests_cancelled_total", stage="decode") == 1
    assert metric(engine, "vllm:request_success_total", finished_reason="abort") == 1
    assert len(runner.batches) < 390


def test_failed_step_fails_only_its_own_requests(start):
    engine, runner = start(max_seqs=1, max_step_tokens=8)
    runner.fail_on_token = ord("!")

    async def ask() -> list[object]:
        asked = [outputs_of(engine, request(prompt)) for prompt in ("good", "bad!", "fine")]
        return await asyncio.gather(*asked, return_exceptions=True)

    good, bad, fine = asyncio.run(ask())
    assert isinstance(bad, EngineError)
    assert "layer 0 is not finite" in str(bad)
    assert len(good[0]) == len(fine[0]) == 20


def test_what_fails_beside_others_fails_alone(start):
    engine, runner = start()
    asked = [request("good"), request("bad!"), request("fine", max_tokens=3)]
    alone = [asyncio.run(outputs_of(engine, one))[0] for one in (asked[0], asked[2])]
    runner.fail_on_token = ord("!")
    runner.gate.clear()

    async def ask() -> list[object]:
        answers = [asyncio.create_task(outputs_of(engine, one)) for one in asked]
        while engine.unfinished < 3:  # noqa: ASYNC110 - the engine is another thread
            await asyncio.sleep(0.001)
        runner.gate.set()
        return await asyncio.gather(*answers, return_exceptions=True)

    good, bad, fine = asyncio.run(ask())
    assert isinstance(bad, EngineError)
    assert [tokens(good[0]), tokens(fine[0])] == [tokens(one) for one in alone]
    assert metric(engine, "lanewise_step_errors_total") == 2  # together, and alone
    assert metric(engine, "lanewise_kv_blocks_used") == 0


STUCK = {"allowed_token_ids": (97,), "stop_token_ids": frozenset({97}), "min_tokens": 9}


@pytest.mark.parametrize("min_ahead_s", [0.0, 60.0])
def test_a_draw_without_a_token_fails_its_request_in_a_step_that_is_run_once(start, min_ahead_s):
    good, bad = request("good"), request("bad", **STUCK)
    calm, counted = start(min_ahead_s=min_ahead_s)
    alone = asyncio.run(outputs_of(calm, good))[0]
    engine, runner = start(min_ahead_s=min_ahead_s)

    async def ask() -> list[object]:
        asked = [outputs_of(engine, good), outputs_of(engine, bad)]
        return await asyncio.gather(*asked, return_exceptions=True)

    for _ in range(2 * MAX_FAILURES):
        first, second = asyncio.run(ask())
        assert tokens(first[0]) == tokens(alone)
        assert isinstance(second, NoTokenError)
        assert "no token may come next" in str(second)
        # Steps of the one that fails, besides those of the other: its prompt, and one begun ahead.
        assert len(runner.batches) <= len(counted.batches) + 2
        runner.batches.clear()
    assert engine.failures.reason is None
    assert metric(engine, "lanewise_step_errors_total") == 0
    assert metric(engine, "lanewise_kv_blocks_used") == 0


@pytest.mark.parametrize("min_ahead_s", [0.0, 60.0])
@pytest.mark.parametrize("prompt", ["abc", "x" * 150])  # the second is more than one step
def test_draws_without_numbers_make_an_engine_unready_until_one_has_them(
    start, monkeypatch, prompt, min_ahead_s
):
    engine, _ = start(min_ahead_s=min_ahead_s)
    broken = Sampled(0, 0.0, error=NativeError("the logits hold NaN or infinity", NONFINITE))
    with monkeypatch.context() as patched:
        patched.setattr(toy, "_sample", lambda row, draw: broken)
        for _ in range(MAX_FAILURES):
            with pytest.raises(EngineError, match="the model failed: the logits hold NaN"):
                asyncio.run(outputs_of(engine, request(prompt)))
    assert "the logits hold NaN" in engine.failures.reason
    assert metric(engine, "lanewise_step_errors_total") == MAX_FAILURES
    [outputs] = asyncio.run(outputs_of(engine, request(prompt)))
    assert outputs[0].cached_tokens == 0  # nobody builds on what those have left
    assert engine.failures.reason is None
    [again] = asyncio.run(outputs_of(engine, request(prompt)))
    assert again[0].cached_tokens == len(prompt) - 1


def test_full_queue_and_stopped_engine_refuse(start):
    engine, runner = start(max_seqs=1, max_queued_requests=0)
    runner.gate.clear()

    async def overfill() -> None:
        async with engine.submit([request()]):
            with pytest.raises(QueueFullError, match="1 sequences run or wait already"):
                async with engine.submit([request()]):
                    pass

    asyncio.run(overfill())
    runner.gate.set()
    engine.stop()
    assert runner.closed
    with pytest.raises(EngineStoppedError):
        asyncio.run(outputs_of(engine, request()))


def test_stopping_tells_those_who_wait(start):
    engine, runner = start()
    runner.delay_s = 0.01

    async def ask() -> None:
        async with engine.submit([request(max_tokens=400)]) as stream:
            await anext(stream)
            await asyncio.to_thread(engine.stop)
            with pytest.raises(EngineStoppedError, match="shutting down"):
                async for _ in stream:
                    pass

    asyncio.run(ask())


def test_event_loop_is_woken_once_for_all_tokens_of_a_step(start):
    engine, runner = start()
    wakes = 0

    async def ask() -> None:
        nonlocal wakes
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe

        def counting(*args, **kwargs):
            nonlocal wakes
            wakes += threading.current_thread().name == "lanewise-engine"
            return original(*args, **kwargs)

        loop.call_soon_threadsafe = counting
        await asyncio.gather(*[outputs_of(engine, request(seed=i)) for i in range(8)])

    asyncio.run(ask())
    assert wakes <= len(runner.batches)


def test_busy_time_holds_the_native_time_and_no_idle_time(start):
    engine, runner = start()
    begin = time.perf_counter()
    for _ in range(2):
        asyncio.run(outputs_of(engine, request(max_tokens=3)))
        time.sleep(0.2)
    wall = time.perf_counter() - begin
    busy, native = (metric(engine, f"lanewise_{kind}_seconds_total") for kind in ("busy", "native"))
    assert native == pytest.approx(runner.counters().native_seconds)
    assert 0 < native < busy < wall - 0.2


def test_every_step_and_token_is_in_the_metrics_once_a_request_has_ended(start):
    engine, runner = start()
    requests = [request("y" * 10, max_tokens=9, seed=i) for i in range(3)]
    asyncio.run(outputs_of(engine, *requests))
    n_steps = len(runner.batches)
    assert metric(engine, "vllm:iteration_tokens_total_count") == n_steps
    assert metric(engine, "vllm:iteration_tokens_total_sum") == 3 * (10 + 9 - 1)
    assert metric(engine, "vllm:prompt_tokens_total") == 3 * 10
    assert metric(engine, "vllm:generation_tokens_total") == 3 * 9
    assert metric(engine, "vllm:time_to_first_token_seconds_count") == 3
    assert metric(engine, "vllm:inter_token_latency_seconds_count") == 3 * 8


def test_request_whose_event_loop_was_closed_does_not_disturb_others(start, caplog):
    engine, runner = start()
    runner.gate.clear()
    lost = asyncio.new_event_loop()

    async def begin() -> None:
        await engine.submit([request("lost")]).__aenter__()

    lost.run_until_complete(begin())
    lost.close()
    runner.gate.set()
    assert len(tokens(asyncio.run(outputs_of(engine, request()))[0])) == 20
    assert "1 outputs lost their event loop" in caplog.text


def test_context_larger_than_the_cache_is_refused():
    with pytest.raises(ValueError, match=r"max_model_len is 65; the KV cache holds 64 tokens"):
        EngineConfig(n_blocks=2, max_model_len=65, vocab_size=10)


def test_a_window_and_a_step_are_all_that_a_long_context_needs():
    config = {"max_model_len": 1000, "vocab_size": 10, "max_step_tokens": 64, "windows": (64,)}
    # A step's tokens twice: the next one may be planned before the first is over.
    assert EngineConfig(n_blocks=7, **config).max_model_len == 1000
    with pytest.raises(ValueError, match="max_model_len is 1000; the KV cache holds 192 tokens"):
        EngineConfig(n_blocks=6, **config)


@pytest.mark.parametrize("max_draft", [0, 6])
def test_answers_longer_than_the_cache_are_the_same_in_any_company(start, max_draft):
    changes = {"max_model_len": 700, "windows": (50,), "max_draft": max_draft}
    requests = [request("x" * (60 * i + 1), max_tokens=300, seed=i) for i in range(4)]
    roomy, _ = start(n_blocks=200, **changes)
    alone = [tokens(asyncio.run(outputs_of(roomy, one))[0]) for one in requests]
    crowded, runner = start(n_blocks=7, max_step_tokens=9, max_step_logits=8, **changes)

    async def together() -> list[list[list[TokenOutput]]]:
        return await asyncio.gather(*[outputs_of(crowded, one) for one in requests])

    crowd = asyncio.run(together())
    assert [tokens(outputs[0]) for outputs in crowd] == alone
    assert max(max(batch.context_lens) for batch in runner.batches) > 7 * 32
    assert metric(crowded, "lanewise_kv_blocks_used") == 0


def test_request_that_could_never_run_is_refused(start):
    engine, _ = start()
    for bad in ([], [request(max_tokens=600)], [request("")]):
        with pytest.raises(ValueError, match="cannot be run"):
            asyncio.run(outputs_of(engine, *bad))
