"""Adapters in the engine: each answer its own, no block crosses, memory goes with the last user."""

import asyncio
import threading
import time

import pytest

from lanewise.engine.base.adapters import (
    AdapterError,
    AdapterGoneError,
    Adapters,
    UnknownAdapterError,
)
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.stream import EngineError
from toy import ToyAdapter
from toy_server import metric, outputs_of

SALTS = {"a": 11, "b": 222, "c": 3333}


@pytest.fixture
def adapters():
    return Adapters(lambda path: ToyAdapter(SALTS[path]), limit=2)


def request(adapter=None, prompt="abc" * 12, **params) -> GenerationRequest:
    settings = SamplingParams(**({"seed": 1, "max_tokens": 20} | params))
    return GenerationRequest(list(prompt.encode()), settings, adapter=adapter)


async def answer(engine, one: GenerationRequest) -> list[int]:
    (outputs,) = await outputs_of(engine, one)
    return [output.sampled.token for output in outputs if output.sampled]


async def together(engine, requests: list[GenerationRequest]) -> list[list[int]]:
    return await asyncio.gather(*(answer(engine, one) for one in requests))


def test_answers_are_those_of_the_adapter_in_any_company(start, adapters):
    a, b = adapters.load("a", "a"), adapters.load("b", "b")
    engine, runner = start()
    requests = [request(one, seed=seed) for seed in range(2) for one in (None, b, a)]
    alone = [asyncio.run(answer(engine, one)) for one in requests]
    assert len({tuple(tokens) for tokens in alone}) == len(requests)
    runner.batches.clear()
    assert asyncio.run(together(engine, requests)) == alone
    full = max(runner.batches, key=lambda batch: len(batch.context_lens))
    assert full.adapters == sorted(full.adapters, key=lambda one: one.salt if one else 0)
    cramped, _ = start(n_blocks=16, max_step_tokens=16, max_step_logits=8)
    assert asyncio.run(together(cramped, requests)) == alone


def test_an_adapter_stays_while_a_step_begun_ahead_has_it(start, adapters):
    a = adapters.load("a", "a")
    one = request(max_tokens=60)
    alone = asyncio.run(answer(start(min_ahead_s=float("inf"))[0], one))
    engine, runner = start()
    runner.delay_s = 0.002  # long enough for the next step to be begun meanwhile

    async def leave_and_unload():
        async with engine.submit([request(a, max_tokens=200, seed=2)]) as stream:
            async for _ in stream:
                if runner.n_begun > 10:
                    adapters.unload("a")
                    return

    async def both():
        wanted, _ = await asyncio.gather(answer(engine, one), leave_and_unload())
        return wanted

    assert asyncio.run(both()) == alone
    assert runner.n_begun > 10
    assert metric(engine, "lanewise_step_errors_total") == 0
    deadline = time.monotonic() + 10
    while not a.weights.closed:
        assert time.monotonic() < deadline, "the adapter is still in memory"
        time.sleep(0.01)


def test_batches_without_adapters_name_none(start):
    engine, runner = start()
    asyncio.run(answer(engine, request()))
    assert all(batch.adapters is None for batch in runner.batches)


def test_no_block_is_found_by_another_adapter(adapters):
    first = adapters.load("a", "a")
    adapters.unload("a")
    other = adapters.load("a", "b")  # with other weights
    again = adapters.load("b", "a")
    tokens = range(64)
    keys = [
        Scheduled(
            GenerationRequest(
                tokens, SamplingParams(seed=0, max_tokens=1), cache_salt=salt, adapter=one
            )
        )
        for salt in ("", "salt")
        for one in (None, first, other, again)
    ]
    assert len({sequence.block_key(index) for sequence in keys for index in (0, 1)}) == 12
    assert keys[1].block_key(1) == keys[3].block_key(1)  # the same weights, so the same blocks


def test_an_unloaded_adapter_stays_until_its_last_request_has_ended(start, adapters):
    engine, runner = start()
    adapter = adapters.load("a", "a")
    expected = asyncio.run(answer(engine, request(adapter)))
    runner.gate.clear()

    async def unload_meanwhile():
        tasks = [asyncio.create_task(answer(engine, request(adapter))) for _ in range(3)]
        await asyncio.sleep(0)
        assert engine.unfinished == 3
        adapters.unload("a")
        assert not adapter.weights.closed
        assert adapters.find("a") is None
        with pytest.raises(AdapterGoneError, match="'a' was unloaded"):
            await answer(engine, request(adapter))
        tasks[0].cancel()
        runner.gate.set()
        return await asyncio.gather(*tasks[1:])

    assert asyncio.run(unload_meanwhile()) == [expected] * 2
    asyncio.run(answer(engine, request()))  # the engine has handled the cancellation by then
    assert adapter.weights.closed
    assert engine.unfinished == 0


def test_a_failed_step_lets_its_adapters_go(start, adapters):
    engine, runner = start()
    adapter = adapters.load("a", "a")
    runner.fail_on_token = ord("z")
    with pytest.raises(EngineError):
        asyncio.run(answer(engine, request(adapter, prompt="xyz")))
    asyncio.run(answer(engine, request()))
    adapters.unload("a")
    assert adapter.weights.closed


def test_places_are_taken_until_memory_is_free(adapters):
    a = adapters.load("a", "a")
    adapters.load("b", "b")
    with pytest.raises(AdapterError, match="2 adapters are in memory; accepted: at most"):
        adapters.load("c", "c")
    a.acquire(1)
    adapters.unload("a")
    with pytest.raises(AdapterError, match="1 of them still in use"):
        adapters.load("c", "c")
    a.release()
    assert a.weights.closed
    assert adapters.load("c", "c").name == "c"
    with pytest.raises(UnknownAdapterError, match="'a' is not loaded"):
        adapters.unload("a")
    adapters.close()
    assert adapters.all() == []


def test_a_name_is_taken_while_its_adapter_is_being_loaded():
    begun, go_on = threading.Event(), threading.Event()

    def load(path):
        begun.set()
        go_on.wait(10)
        if path == "bad":
            raise AdapterError("bad")
        return ToyAdapter(1)

    adapters = Adapters(load, limit=2)
    outcome = []

    def load_bad():
        with pytest.raises(AdapterError, match="bad"):
            adapters.load("x", "bad")
        outcome.append("refused")

    thread = threading.Thread(target=load_bad)
    thread.start()
    begun.wait(10)
    with pytest.raises(AdapterError, match="'x' has already been loaded"):
        adapters.load("x", "good")
    go_on.set()
    thread.join()
    assert outcome == ["refused"]
    assert adapters.load("x", "good").weights.salt == 1
