"""The pacer against machines that are made up: it must find out how fast they are."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanewise.engine.base.block_pool import BlockPool
from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.scheduling.pacing import (
    AIM,
    ALONE_ROWS,
    ALONE_S,
    MAX_CHUNK,
    MIN_CHUNK,
    MIN_SHARE,
    TILE,
    Pacer,
    SizeCost,
    Work,
)
from lanewise.engine.scheduling.scheduler import Scheduler
from scheduling import complete, sequence


def work(decodes: int, prompt: int = 0, context: int = 0, cached: int = 100) -> Work:
    size = Work()
    for _ in range(decodes):
        size.add(1, cached)
    if prompt:
        size.add(prompt, context)
    return size


def seconds(size: Work, base: float, per_row: float, per_pair: float = 0.0) -> float:
    return base + per_row * size.rows + per_pair * size.attended


def serve(pacer: Pacer, cost, decodes: int, prompt: int) -> list[tuple[int, float]]:
    """Prefill one prompt beside decodes; each step's part of it and its time."""
    steps, done = [], 0
    while done < prompt:
        count = min(prompt - done, pacer.spare_tokens(work(decodes), done))
        size = work(decodes, count, done)
        pacer.cost.learn(size, cost(size))
        steps.append((count, cost(size)))
        done += count
    return steps


@pytest.mark.parametrize("window", [None, 1, 5, 12, 100])
@pytest.mark.parametrize("context", [0, 3, 10, 30])
def test_tokens_attend_to_what_their_window_shows(window, context):
    size = Work()
    size.add(7, context, window)
    seen = [context + i + 1 for i in range(7)]
    assert size == Work(7, sum(min(n, window or n) for n in seen))


def test_without_decodes_a_prompt_takes_all_there_is():
    assert Pacer(0.01).spare_tokens(Work(), 0) == MAX_CHUNK


@pytest.mark.parametrize(("per_row", "rows"), [(0.001, 900), (0.1, ALONE_ROWS)])
def test_prompts_alone_take_steps_of_bounded_time(per_row, rows):
    """Who comes meanwhile waits for one of them; a slow machine has rows enough all the same."""
    pacer = Pacer(0.1)
    for size in (30, 512, 512):
        serve(pacer, lambda size: seconds(size, 0.02, per_row), 0, size)
    steps = serve(pacer, lambda size: seconds(size, 0.02, per_row), 0, 6000)
    assert all(rows <= count <= max(rows, ALONE_S / per_row) for count, _ in steps[:-1])


@pytest.mark.parametrize("decodes", [0, 4])
def test_what_a_long_context_costs_bounds_its_step_beside_short_prompts_too(decodes):
    """A short prompt comes first, and what is behind it attends to all that was before."""
    pacer = Pacer(0.17)
    config = SchedulerConfig(16, 1024, 16, 8192)
    scheduler = Scheduler(config, BlockPool(1000), pacer)

    def run() -> tuple[float, list[int]]:
        step = scheduler.schedule()
        took = seconds(scheduler.work_of(step.turns), 0.01, 0.0002, 8e-7)
        pacer.cost.learn(scheduler.work_of(step.turns), took)
        counts = [turn.count for turn in step.turns]
        complete(scheduler, step)
        return took, counts

    for n_tokens in (300, 2_000):
        scheduler.add(sequence(n_tokens, 1, client=1))
        while scheduler.running or scheduler.waiting:
            run()
    for _ in range(decodes):
        scheduler.add(sequence(8, 1_000, client=1))
        run()
    long = sequence(7_900, 1, client=2)
    scheduler.add(long)
    while long.n_cached < 6_000:
        run()
    most = 1.1 * (0.17 if decodes else ALONE_S)
    for client in range(3, 7):
        scheduler.add(sequence(500, 1, client=client))
        for _ in range(2):
            took, counts = run()
            assert took < most
            assert long in scheduler.running
    assert len(counts) > 1  # the long one takes part


def test_before_anything_is_known_the_least_is_taken():
    assert Pacer(10.0).spare_tokens(work(1), 0) in range(MIN_CHUNK, MIN_CHUNK + TILE)


@settings(deadline=None, max_examples=30)
@given(
    base=st.floats(0.001, 0.5),
    per_row=st.floats(0.0001, 0.02),
    per_pair=st.floats(0, 1e-6),
    decodes=st.integers(1, 64),
    factor=st.floats(0.5, 10),
)
def test_steps_fill_the_target_and_stay_below_it(base, per_row, per_pair, decodes, factor):
    def cost(size: Work) -> float:
        return seconds(size, base, per_row, per_pair)

    target = factor * cost(work(decodes))
    pacer = Pacer(target)
    for size in (work(0, 300), work(0, 40, 300), *[work(decodes)] * 40):
        pacer.cost.learn(size, cost(size))
    serve(pacer, cost, decodes, 2000)
    # A target that decodes alone nearly take is stretched, so that prompts go on.
    target = max(target, (1 + MIN_SHARE) * cost(work(decodes)))
    for count, took in serve(pacer, cost, decodes, 2000)[:-1]:
        assert (decodes + count) % TILE == 0
        assert count >= MIN_CHUNK
        if count > MIN_CHUNK + TILE:
            assert took <= 1.2 * target
        one_more = seconds(work(decodes, count + 2 * TILE), base, per_row, per_pair)
        assert one_more + 2000 * per_pair * count > 0.7 * AIM * target


def test_a_machine_that_becomes_slower_gets_smaller_steps_and_then_larger_ones_again():
    speed = 1.0

    def cost(size: Work) -> float:
        return speed * seconds(size, 0.02, 0.002, 3e-7)

    pacer = Pacer(0.1)
    pacer.cost.learn(work(0, 200), cost(work(0, 200)))
    for _ in range(50):
        pacer.cost.learn(work(8), cost(work(8)))
    quick = serve(pacer, cost, 8, 2000)
    speed = 1.8
    slow = serve(pacer, cost, 8, 2000)
    assert max(took for _, took in slow[80:]) < 0.125 < slow[0][1]
    speed = 1.0
    again = serve(pacer, cost, 8, 2000)
    assert len(again) < len(slow)
    assert again[-2][0] == pytest.approx(quick[-2][0], abs=2 * TILE)


def test_steps_whose_time_is_no_line_in_their_rows_are_predicted():
    """Times of a 1B model with kernels of eight rows: the fourth tile costs half of the third."""
    measured_ms = {8: 68, 12: 97, 16: 119, 20: 134, 24: 145, 28: 163, 512: 2500}

    def cost(size: Work) -> float:
        rows = list(measured_ms)
        return 1e-3 * np.interp(size.rows, rows, [*measured_ms.values()]) + 1e-6 * size.attended

    pacer = Pacer(0.13)
    pacer.cost.learn(work(0, 512), cost(work(0, 512)))
    for _ in range(50):
        pacer.cost.learn(work(8), cost(work(8)))
    serve(pacer, cost, 8, 2000)
    for count, context in ((8, 500), (12, 1000), (8, 1900)):
        size = work(8, count, context)
        assert pacer.cost.seconds(size) == pytest.approx(cost(size), rel=0.07)
    took = [took for _, took in serve(pacer, cost, 8, 2000)[:-1]]
    assert 0.095 < min(took) < max(took) < 2 * 0.068  # twice that of decodes alone


def test_a_prompt_has_its_share_of_the_time_where_a_few_rows_are_all_of_it():
    """Sixteen rows take 1.8 times as long as eight, twelve 1.4 times: no share is a half of it."""

    def cost(size: Work) -> float:
        return 1e-3 * np.interp(size.rows, [8, 12, 16, 20, 512], [40, 56, 72, 88, 1700])

    pacer = Pacer(0.01)
    pacer.cost.learn(work(0, 512), cost(work(0, 512)))
    for _ in range(50):
        pacer.cost.learn(work(8), cost(work(8)))
    serve(pacer, cost, 8, 500)
    assert [count for count, _ in serve(pacer, cost, 8, 500)[:-1]] == [8] * 62


def test_a_first_step_that_took_long_says_nothing_of_those_after_it():
    def cost(size: Work) -> float:
        return seconds(size, 0.02, 0.003, 6e-7)

    pacer = Pacer(0.08)
    pacer.cost.learn(work(0, 3), 0.25)  # pages of the model were touched for the first time
    for prompt in (345, 119, 142, 284):
        pacer.cost.learn(work(0, prompt), cost(work(0, prompt)))
    for _ in range(50):
        pacer.cost.learn(work(12), cost(work(12)))
    for size in (work(4), work(8)):
        assert pacer.cost.seconds(size) == pytest.approx(cost(size), rel=0.15)
    took = [took for _, took in serve(pacer, cost, 8, 2000)]
    assert max(took) < 0.09
    for _ in range(8):
        pacer.cost.learn(work(0, 3), cost(work(0, 3)))
    assert pacer.cost.seconds(work(0, 3)) == pytest.approx(cost(work(0, 3)), rel=0.15)


def test_pauses_of_the_machine_change_little():
    rng = random.Random(1)
    cost = SizeCost()
    for i in range(2000):
        size = work(8, prompt=rng.choice([0, 0, 16, 32]), context=rng.randrange(2000))
        pause = 3.0 if i % 50 == 49 else 0.0
        cost.learn(size, pause + rng.uniform(0.95, 1.05) * seconds(size, 0.02, 0.002))
    predicted = cost.seconds(work(8, 24))
    assert predicted == pytest.approx(seconds(work(8, 24), 0.02, 0.002), rel=0.15)


def test_a_long_prompt_is_estimated_from_short_ones_within_bounds():
    """Two sizes of short steps say nothing of what pairs cost: a fit of them may be far off."""
    cost = SizeCost()
    assert cost.seconds_beyond(work(0, 8192)) == 0
    cost.learn(work(1, cached=50), 0.010)
    assert cost.seconds_beyond(work(0, 8192)) == 0
    for size, took in ((50, 0.30), (48, 0.11), (20, 0.09), (64, 0.41)):
        cost.learn(work(0, size), took)
        rows_s = 8192 * 0.011 / 2
        assert rows_s / 3 < cost.seconds_beyond(work(0, 8192)) < 12 * rows_s


def test_a_long_prompt_is_estimated_well_where_long_contexts_were_seen():
    cost, rng = SizeCost(), random.Random(1)

    def true(size: Work) -> float:
        return seconds(size, 0.005, 0.0014, 3e-7)

    for _ in range(200):
        size = work(0, rng.choice([64, 128, 256]), rng.randrange(6000))
        cost.learn(size, true(size) * rng.uniform(0.9, 1.1))
    whole = true(work(0, 8192))
    assert 0.7 * whole < cost.seconds_beyond(work(0, 8192)) < 1.5 * whole
