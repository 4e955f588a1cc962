"""Whole texts wait: nobody waits for another's million, and no order changes an answer."""

import asyncio
import time
from types import SimpleNamespace

import numpy as np
import pytest

from lanewise.engine.base.stream import (
    EngineError,
    EngineStoppedError,
    QueueFullError,
    QueueTimeoutError,
    TimeLimitError,
)
from lanewise.engine.scheduling.text_queue import EncodingJob, EncodingRequest, TextQueue
from toy_encoder import ToyEncoder, make_engine, vector
from toy_server import metric


def request(*lengths: int, client: int = 0, **options) -> EncodingRequest:
    texts = [np.arange(10, 10 + length, dtype=np.uint32) for length in lengths]
    return EncodingRequest(texts, client=client, **options)


def job(*lengths: int, client: int = 0) -> EncodingJob:
    return EncodingJob(request(*lengths, client=client), 0.0, None, None)


def taken(queue: TextQueue, jobs: list[EncodingJob], tokens: int, texts: int = 99):
    turns = queue.take(tokens, texts)
    return {jobs.index(turn.job): (turn.first, turn.end) for turn in turns}


def test_requests_share_a_step():
    queue, jobs = TextQueue(), [job(*[4] * 100), job(4, 4), job(4)]
    for one in jobs:
        queue.add(one)
    assert taken(queue, jobs, 24) == {0: (0, 3), 1: (0, 2), 2: (0, 1)}
    assert taken(queue, jobs, 24) == {0: (3, 9)}
    assert (len(queue), queue.n_texts) == (1, 91)


def test_clients_share_a_step_however_many_requests_they_have():
    jobs = [job(*[8] * 9, client=1) for _ in range(20)] + [job(8, 8, client=2)]
    queue = TextQueue()
    for one in jobs:
        queue.add(one)
    taken(queue, jobs, 16)
    seen = taken(queue, jobs, 16)
    assert 20 in seen or jobs[20].n_begun


def test_a_long_text_is_a_step_of_its_own_and_comes():
    queue, jobs = TextQueue(), [job(4, 50, 4)]
    queue.add(jobs[0])
    assert taken(queue, jobs, 10) == {0: (0, 1)}
    assert taken(queue, jobs, 10) == {0: (1, 2)}
    assert taken(queue, jobs, 10) == {0: (2, 3)}
    assert taken(queue, jobs, 10) == {}


@pytest.mark.parametrize("n_others", [1, 2, 3])
@pytest.mark.parametrize("length", [40, 64, 200])
def test_a_text_longer_than_what_others_leave_comes_too(n_others, length):
    jobs = [job(*[3] * 1000, client=client) for client in range(n_others)]
    jobs.append(job(length, length, client=n_others))
    queue = TextQueue()
    for one in jobs:
        queue.add(one)
    seen = [taken(queue, jobs, 64) for _ in range(6)]
    assert jobs[-1].n_begun == 2
    for other in range(n_others):
        assert sum(other in step for step in seen) >= 2


def test_more_clients_than_a_step_has_room_for_take_turns():
    jobs = [job(*[10] * 100, client=client) for client in range(30)]
    queue = TextQueue()
    for one in jobs:
        queue.add(one)
    for _ in range(30):
        queue.take(32, 99)
    assert {one.n_begun for one in jobs} <= {3, 4}


@pytest.mark.parametrize("length", [4, 30, 64, 200])
@pytest.mark.parametrize("client", [1, 2])
@pytest.mark.parametrize("n_before", range(4))
def test_a_short_text_is_in_the_next_step_whatever_fills_it(length, client, n_before):
    queue, jobs = TextQueue(), [job(*[length] * 2048, client=1), job(8, client=client)]
    queue.add(jobs[0])
    for _ in range(n_before):
        queue.take(64, 99)
    queue.add(jobs[1])
    step = taken(queue, jobs, 64)
    assert step[1] == (0, 1)
    assert (step[0][1] - step[0][0]) * length + 8 <= max(64, length) + 32
    assert (len(queue), queue.n_texts) == (1, 2048 - jobs[0].n_begun)


def test_short_texts_that_keep_coming_take_no_turn_from_a_long_one():
    queue, long = TextQueue(), job(*[64] * 20, client=1)
    queue.add(long)
    for step in range(10):
        short = [job(8, client=2 + client) for client in range(20)]
        for one in short:
            queue.add(one)
        tokens = sum(turn.n_tokens for turn in queue.take(64, 99))
        assert tokens <= 64 + 32, step
    assert long.n_begun >= 1


def test_no_step_has_more_texts_than_it_may():
    queue, jobs = TextQueue(), [job(*[1] * 10), job(*[1] * 10)]
    for one in jobs:
        queue.add(one)
    assert sum(end - first for first, end in taken(queue, jobs, 100, 7).values()) == 7


def test_what_is_removed_waits_no_more():
    queue, jobs = TextQueue(), [job(1, 1), job(1)]
    for one in jobs:
        queue.add(one)
    queue.remove(jobs[0])
    queue.remove(jobs[0])
    assert queue.n_texts == 1
    assert taken(queue, jobs, 10) == {1: (0, 1)}


@pytest.fixture
def runner():
    return ToyEncoder()


def started(runner, **changes):
    engine = make_engine(runner, **changes)
    engine.start()
    return engine


async def all_asked(engine, count):
    """Let the tasks begin, which puts as many requests into the engine's queue as there are."""
    await asyncio.sleep(0)
    assert engine.unfinished == count


def test_every_text_gets_its_row_in_any_company(runner):
    engine = started(runner)

    async def all_of_them():
        lengths = [[1 + (i * j) % 20 for j in range(1, 1 + i % 7)] for i in range(1, 9)]
        wanted = [request(*some, client=i % 3, normalize=False) for i, some in enumerate(lengths)]
        return wanted, await asyncio.gather(*(engine.encode(one) for one in wanted))

    wanted, found = asyncio.run(all_of_them())
    for asked, rows in zip(wanted, found, strict=True):
        assert [row.tolist() for row in rows] == [vector(ids).tolist() for ids in asked.texts]
    engine.stop()
    assert runner.closed
    assert metric(engine, "lanewise_encoded_texts_total") == sum(map(len, runner.steps))
    assert metric(engine, "vllm:request_success_total", finished_reason="stop") == 8
    assert metric(engine, "vllm:prompt_tokens_total") == sum(map(sum, runner.steps))
    assert metric(engine, "lanewise_request_texts_count") == 8
    assert metric(engine, "lanewise_queued_texts") == 0


def test_a_short_request_passes_a_long_one(runner):
    engine = started(runner)

    async def both():
        long = asyncio.create_task(engine.encode(request(*[8] * 4000)))
        await asyncio.to_thread(runner.begun.wait)
        await engine.encode(request(8, client=1))
        assert not long.done()
        long.cancel()

    asyncio.run(both())
    engine.stop()
    assert len(runner.steps) < 400


def test_who_leaves_takes_its_texts_along(runner):
    engine = started(runner)

    async def leave():
        runner.gate.clear()
        task = asyncio.create_task(engine.encode(request(*[8] * 4000)))
        await asyncio.to_thread(runner.begun.wait)
        task.cancel()
        await asyncio.wait([task])
        runner.gate.set()
        await engine.encode(request(8))

    asyncio.run(leave())
    engine.stop()
    assert engine.unfinished == 0
    assert len(runner.steps) < 100
    assert metric(engine, "vllm:request_success_total", finished_reason="abort") == 1


def test_a_text_that_fails_fails_its_request_alone(runner):
    engine = started(runner)
    runner.fail_on_token = 17

    async def three():
        # A step holds the engine up until all three wait, and so share the next.
        runner.gate.clear()
        before = asyncio.create_task(engine.encode(request(1)))
        await asyncio.to_thread(runner.begun.wait)
        asked = (request(4, 4), request(2, 8), request(3))
        tasks = [asyncio.create_task(engine.encode(one)) for one in asked]
        await all_asked(engine, 4)
        runner.gate.set()
        await before
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(three())
    engine.stop()
    assert [len(results[0]), len(results[2])] == [2, 1]
    assert isinstance(results[1], EngineError)
    assert "layer 0 is not finite" in str(results[1])
    assert [4, 4, 2, 8, 3] in runner.steps
    assert engine.unfinished == 0


def test_too_many_are_turned_away(runner):
    engine = started(runner, max_requests=2, max_queued_tokens=100)

    async def fill():
        runner.gate.clear()
        kept = [asyncio.create_task(engine.encode(request(30))) for _ in range(2)]
        await all_asked(engine, 2)
        with pytest.raises(QueueFullError, match="2 requests run or wait already; the limit is 2"):
            await engine.encode(request(1))
        runner.gate.set()
        await asyncio.gather(*kept)

    asyncio.run(fill())
    engine.stop()
    with pytest.raises(EngineStoppedError, match="shutting down"):
        asyncio.run(engine.encode(request(1)))


def test_who_has_an_answer_has_its_place_back(runner):
    engine = started(runner, max_requests=1)

    async def one_after_another():
        for _ in range(200):
            await engine.encode(request(1))

    asyncio.run(one_after_another())
    engine.stop()
    assert len(runner.steps) == 200


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"queue_timeout_s": 60.0}, QueueTimeoutError),
        ({"request_timeout_s": 60.0}, TimeLimitError),
    ],
)
def test_who_waits_for_too_long_is_told(runner, monkeypatch, limits, error):
    now = 100.0
    clock = SimpleNamespace(monotonic=lambda: now, perf_counter=time.perf_counter)
    monkeypatch.setattr("lanewise.engine.encoding.time", clock)
    engine = started(runner, **limits)

    async def wait():
        nonlocal now
        runner.gate.clear()
        first = asyncio.create_task(engine.encode(request(*[60] * 4)))
        await asyncio.to_thread(runner.begun.wait)
        late = asyncio.create_task(engine.encode(request(4, client=1)))
        await all_asked(engine, 2)
        now += 61
        runner.gate.set()
        return await asyncio.gather(first, late, return_exceptions=True)

    first, late = asyncio.run(wait())
    engine.stop()
    assert isinstance(late, error)
    assert isinstance(first, error) == (error is TimeLimitError)


def test_rows_of_tokens_and_other_modes_run_beside_each_other(runner):
    engine = started(runner)

    async def both():
        asked = (request(3, 2, pooling="none"), request(3), request(2, normalize=False))
        return await asyncio.gather(*map(engine.encode, asked))

    tokens, unit, plain = asyncio.run(both())
    engine.stop()
    assert [rows.shape[0] for rows in tokens] == [3, 2]
    assert tokens[1][1].tolist() == vector([11]).tolist()
    assert np.linalg.norm(unit[0]) == pytest.approx(1, abs=1e-6)
    assert plain[0].tolist() == vector([10, 11]).tolist()
