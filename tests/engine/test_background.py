"""Requests in the background: only what is free, given up at once, its cache first."""

import numpy as np
import pytest

from lanewise.engine.base.block_pool import BlockPool
from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.base.request import BACKGROUND
from lanewise.engine.base.sequence import State
from lanewise.engine.scheduling.background import ALONE_ROWS
from lanewise.engine.scheduling.pacing import Pacer, Work
from lanewise.engine.scheduling.scheduler import Scheduler
from lanewise.engine.scheduling.text_queue import EncodingJob, EncodingRequest, TextQueue
from lanewise.runtime import BLOCK_TOKENS
from scheduling import complete, counts, run, scheduler, sequence


def later(n_prompt=4, **more):
    return sequence(n_prompt, priority=BACKGROUND, client=-1, **more)


def paced(stretch, n_blocks=1000, ms_per_tile=1.0, max_seqs=64):
    """A scheduler that knows what steps cost: 10 ms, and more for each row."""
    pacer = Pacer(0.1)
    for _ in range(8):
        for rows in range(1, 200, 3):
            pacer.cost.learn(Work(rows, 0), 0.010 + -(-rows // 4) * ms_per_tile / 1000)
    config = SchedulerConfig(max_seqs, 512, 128, 4096, background_stretch=stretch)
    return Scheduler(config, BlockPool(n_blocks), pacer)


def test_it_starts_where_a_place_is_free_and_after_all_others():
    s = scheduler(max_seqs=2)
    background, one, other = later(), sequence(4), sequence(4)
    for each in (background, one, other):
        s.add(each)
    step = s.schedule()
    assert step.admitted == [one, other]
    assert background.state is State.WAITING
    complete(s, step)
    s.finish(one)
    assert s.schedule().admitted == [background]


def test_it_gives_up_its_place_at_once():
    s = scheduler(max_seqs=2)
    background = [later(), later()]
    for one in background:
        s.add(one)
    run(s)
    newcomer = sequence(4)
    s.add(newcomer)
    step = s.schedule()
    assert (step.preempted, step.admitted) == ([background[1]], [newcomer])
    assert newcomer in counts(step)


def test_it_gives_up_as_many_blocks_as_others_lack():
    s = scheduler(n_blocks=12, max_seqs=4)
    background = [later(3 * BLOCK_TOKENS, max_tokens=20) for _ in range(2)]
    for one in background:
        s.add(one)
    for _ in range(16):
        run(s)
    assert len(s.running) == 2
    newcomer = sequence(5 * BLOCK_TOKENS, max_tokens=20)
    s.add(newcomer)
    step = s.schedule()
    assert step.preempted == background[1:]
    assert step.admitted == [newcomer]
    # Others keep theirs: one that lacks more than the background has waits.
    another = sequence(11 * BLOCK_TOKENS)
    complete(s, step)
    s.add(another)
    step = s.schedule()
    assert (step.preempted, another.state) == ([], State.WAITING)


def test_it_takes_no_place_from_others_of_the_background_or_in_front():
    s = scheduler(max_seqs=2)
    running = [sequence(4), later()]
    for one in running:
        s.add(one)
    run(s)
    s.add(later())
    for _ in range(20):
        assert not s.schedule().preempted or pytest.fail("one was preempted")
        run(s)


@pytest.mark.parametrize(
    ("stretch", "rows"),
    [
        (0.0, 0),  # alone
        (0.02, 0),  # 12 ms and a tile of 1 ms more are too much
        (0.1, 4),
        (0.2, 8),
    ],
)
def test_it_lengthens_a_step_of_others_by_no_more_than_it_may(stretch, rows):
    s = paced(stretch)
    for one in [*(sequence(4) for _ in range(8)), *(later(1) for _ in range(24))]:
        s.add(one)
    for _ in range(40):
        run(s)
    taken = counts(s.schedule())
    assert sum(taken[one] for one in taken if not one.request.is_background) == 8
    assert sum(taken[one] for one in taken if one.request.is_background) == rows


def test_all_get_their_turn_where_few_have_room():
    s = paced(0.1)
    background = [later(1) for _ in range(12)]
    for one in background:
        s.add(one)
    assert sum(run(s)) == 12
    for _ in range(8):
        s.add(sequence(4, max_tokens=900))
    for _ in range(60):
        run(s)
    drawn = [one.n_output for one in background]
    assert min(drawn) > 15
    assert np.ptp(drawn) <= 2


def test_alone_its_steps_are_short_enough_for_whoever_comes():
    s = paced(0.05, ms_per_tile=2.0)  # 50 ms, half of what is aimed at, have room for 80 rows
    for _ in range(4):
        s.add(later(400))
    assert 72 <= sum(run(s)) <= 80
    s = paced(0.05, ms_per_tile=40.0)
    for _ in range(4):
        s.add(later(400))
    assert sum(run(s)) == ALONE_ROWS


def test_without_a_pacer_it_fills_the_tile_that_others_have_begun():
    s = scheduler(max_seqs=12)
    for one in [*(sequence(1) for _ in range(6)), *(later(1) for _ in range(6))]:
        s.add(one)
    for _ in range(8):
        run(s)
    assert sum(run(s)) == 8


def test_its_blocks_are_reused_before_those_of_others():
    pool = BlockPool(6)
    front, behind = pool.allocate(2), pool.allocate(2)
    for number, block in enumerate(front + behind):
        pool.keep(block, bytes([number]) * 16, b"", [number])
    pool.release(front)
    pool.release(behind, first=True)
    assert pool.n_free == 6
    assert set(pool.allocate(2)).isdisjoint(front + behind)  # what is empty comes first of all
    assert set(pool.allocate(2)) == set(behind)
    assert pool.find(bytes([0]) * 16) == front[0]
    pool.share([front[0]])
    assert pool.allocate(1) == [front[1]]
    assert pool.n_free == 0


def test_cached_blocks_of_the_background_are_found_and_shared():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.keep(block, b"k" * 16, b"", [1])
    pool.release([block], first=True)
    pool.share([block])
    assert (pool.n_used, pool.is_free(block)) == (1, False)


def test_texts_in_the_background_wait_while_others_do():
    queue = TextQueue()
    texts = [np.zeros(10, np.uint32)] * 4
    jobs = [EncodingJob(EncodingRequest(texts, client=n), 0.0, None, None) for n in (-1, 0, -2)]
    for job in jobs:
        queue.add(job)
    assert [turn.job for turn in queue.take(100, 100)] == [jobs[1]]
    assert (queue.n_texts, len(queue)) == (8, 2)
    assert {turn.job for turn in queue.take(100, 100)} == {jobs[0], jobs[2]}
    assert queue.n_texts == 0
