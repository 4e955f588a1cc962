"""Steps that are begun before the one before them has ended: same answers, nothing lost."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from lanewise.engine.base.request import BACKGROUND, GenerationRequest, SamplingParams
from lanewise.engine.base.stream import EngineError
from lanewise.runtime import DRAWN_BEFORE, Sampled
from scheduling import counts, scheduler, sequence
from toy_server import metric, outputs_of

NEVER = float("inf")
LONGEST = 160
PENDING = range(DRAWN_BEFORE, DRAWN_BEFORE + 1000)


def request(prompt: str, choice: int = 0, **params) -> GenerationRequest:
    settings = {"seed": 1, "max_tokens": 20} | params
    return GenerationRequest(list(prompt.encode()), SamplingParams(**settings), choice)


def tokens(outputs) -> list[int]:
    return [output.sampled.token for output in outputs if output.sampled]


def wait_until(condition: Callable[[], bool]) -> None:
    """What the engine's thread does a moment after the last answer."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.001)


def mixed_requests(n: int) -> list[GenerationRequest]:
    """Some end by a token that may come at any time, or shun it; some beginnings are shared."""
    numbers = random.Random(5)
    requests = []
    for i in range(n):
        stops = frozenset(numbers.sample(range(97, 123), i % 4))
        prompt = "the same beginning of a text " * (i % 3) + "x" * numbers.randint(1, 70)
        length = numbers.randint(1, 90)
        shuns = {"presence_penalty": 2.0, "repetition_penalty": 1.5} if i % 5 == 1 else {}
        requests.append(request(prompt, seed=i, max_tokens=length, stop_token_ids=stops, **shuns))
    return requests


@pytest.mark.parametrize("limits", [{}, {"max_step_tokens": 9, "max_step_logits": 8}])
def test_answers_and_metrics_are_those_of_steps_one_after_the_other(start, limits):
    requests = mixed_requests(24)

    async def together(engine):
        return await asyncio.gather(*[outputs_of(engine, one) for one in requests])

    answers = {}
    for min_ahead_s in (0.0, NEVER):
        changes = {"n_blocks": 24, "max_model_len": 320, "max_queued_requests": 24, **limits}
        engine, runner = start(min_ahead_s=min_ahead_s, **changes)
        answers[min_ahead_s] = [outputs[0] for outputs in asyncio.run(together(engine))]
        assert (runner.n_begun > 20) == (min_ahead_s == 0.0)
        wait_until(lambda engine=engine: metric(engine, "lanewise_kv_blocks_used") == 0)
        generated = sum(len(tokens(one)) for one in answers[min_ahead_s])
        assert metric(engine, "vllm:generation_tokens_total") == generated
        assert metric(engine, "vllm:prompt_tokens_total") == sum(
            len(one.prompt) for one in requests
        )
    ahead, plain = answers.values()
    assert [tokens(one) for one in ahead] == [tokens(one) for one in plain]
    assert [one[-1].finish_reason for one in ahead] == [one[-1].finish_reason for one in plain]


def test_what_leaves_in_the_middle_disturbs_nobody(start):
    requests = mixed_requests(12)
    alone = [tokens(asyncio.run(outputs_of(start()[0], one))[0]) for one in requests]
    engine, runner = start(n_blocks=48, max_queued_requests=24)

    async def leave(one, after: int):
        async with engine.submit([one]) as stream:
            seen = 0
            async for outputs in stream:
                seen += len(outputs)
                if seen >= after:
                    return

    async def together():
        leaving = [leave(request("y" * (i + 1), max_tokens=60, seed=i), 3 * i) for i in range(6)]
        answers = asyncio.gather(*[outputs_of(engine, one) for one in requests])
        await asyncio.gather(*leaving)
        return await answers

    assert [tokens(one[0]) for one in asyncio.run(together())] == alone
    wait_until(lambda: not engine.unfinished)
    assert runner.n_begun > 20
    assert metric(engine, "vllm:generation_tokens_total") >= sum(map(len, alone))


@pytest.mark.parametrize("place", [0, -1])
def test_a_step_that_fails_takes_the_one_begun_behind_it_along_and_no_other_request(start, place):
    good = [request("abc", seed=i, max_tokens=40) for i in range(3)]
    wanted = [tokens(asyncio.run(outputs_of(start()[0], one))[0]) for one in good]
    bad = request("zz", seed=9, max_tokens=40)
    of_bad = tokens(asyncio.run(outputs_of(start()[0], bad))[0])[:-1]
    engine, runner = start()
    # The first or last token that nobody else has: when the model sees it, its step fails.
    others = set().union(*wanted)
    runner.fail_on_token = [one for one in of_bad if one not in others][place]

    async def together():
        answers = [outputs_of(engine, one) for one in (*good, bad)]
        return await asyncio.gather(*answers, return_exceptions=True)

    *served, failed = asyncio.run(together())
    assert isinstance(failed, EngineError)
    assert [tokens(one[0]) for one in served] == wanted
    assert runner.n_begun > 20
    assert metric(engine, "lanewise_step_errors_total") > 0


def test_steps_that_nobody_waits_for_are_not_begun_ahead(start):
    """A request that comes meanwhile would wait for two of them."""
    engine, runner = start()
    later = [replace(one, priority=BACKGROUND) for one in mixed_requests(6)]

    async def together():
        return await asyncio.gather(*[outputs_of(engine, one) for one in later])

    assert all(tokens(one[0]) for one in asyncio.run(together()))
    assert runner.n_begun == 0


@pytest.mark.parametrize("most_begun", [0, 5])
def test_what_cannot_be_begun_ahead_is_run_by_itself(start, caplog, most_begun):
    requests = mixed_requests(6)
    alone = [tokens(asyncio.run(outputs_of(start()[0], one))[0]) for one in requests]
    engine, runner = start()
    runner.most_begun = most_begun

    async def together():
        return await asyncio.gather(*[outputs_of(engine, one) for one in requests])

    assert [tokens(one[0]) for one in asyncio.run(together())] == alone
    assert runner.n_begun == most_begun
    warnings = [one for one in caplog.messages if "cannot be begun ahead: the arguments" in one]
    assert 0 < len(warnings) <= len(runner.batches) - most_begun  # one for each step


def test_a_guess_waits_for_the_tokens_before_it_and_comes_true(start):
    # A text that repeats itself is guessed at.
    one = request("a" * 8, max_tokens=60, presence_penalty=1.0, temperature=0.0)
    many = [request("ab" * 9, choice=i, max_tokens=60, logit_bias=((97, 50.0),)) for i in range(8)]
    plain, _ = start(min_ahead_s=NEVER)
    wanted = asyncio.run(outputs_of(plain, *many, one))
    engine, runner = start(max_draft=4, max_seqs=12)
    got = asyncio.run(outputs_of(engine, *many, one))
    assert runner.n_begun < len(runner.batches)
    assert metric(engine, "vllm:spec_decode_num_accepted_tokens_total") > 0
    assert [tokens(outputs) for outputs in got] == [tokens(outputs) for outputs in wanted]


@pytest.mark.parametrize("fails", [True, False])
def test_what_a_failed_step_would_have_computed_is_not_found_by_others(fails):
    s = scheduler(max_step_tokens=64)
    one, alike = sequence(20, text=1), sequence(20, text=1)
    s.add(one)
    step = s.schedule()
    s.begin(step)
    s.finish(one)  # cancelled while it runs
    assert s._pool.n_used == 1
    if fails:
        s.take_back(step)
    else:
        s.record(step, [[Sampled(0, 0.0)]])
    assert s._pool.n_used == 0
    s.add(alike)
    assert counts(s.schedule()) == {alike: 20 if fails else 1}
