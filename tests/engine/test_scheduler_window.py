"""Sliding windows: what a sequence holds of the cache, gives back, and finds again."""

import pytest

from lanewise.engine.base.block_pool import NO_BLOCK, BlockPool, blocks_for
from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.base.sequence import State
from lanewise.engine.base.step import Step
from lanewise.engine.base.window import Window, Windows
from lanewise.engine.scheduling.pacing import Pacer, Work
from lanewise.engine.scheduling.scheduler import Scheduler
from lanewise.runtime import Sampled
from scheduling import complete, run, run_to_end, scheduler, sequence, step_that_preempts


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 64, 100])
@pytest.mark.parametrize("step_tokens", [1, 5, 32, 50])
def test_what_is_held_covers_every_step_and_is_never_more_than_that(size, step_tokens):
    window = Window(size, step_tokens)
    most = 0
    for position in range(300):
        first = window.first_block(position)
        end = window.end_block(1000, first)
        assert first * 32 <= max(0, position + 1 - size)
        assert blocks_for(position + step_tokens) <= end
        most = max(most, blocks_for(position + step_tokens) - first)
        assert window.end_block(position + 1, first) == min(end, blocks_for(position + 1))
    assert most == window.most_blocks(1000)


def test_without_a_window_everything_is_held():
    window = Window(None, 5)
    assert [window.first_block(1000), window.most_blocks(1000)] == [0, 32]
    windows = Windows((window,))
    assert [windows.longest(3, 1000), windows.longest(32, 1000)] == [96, 1000]


def test_the_longest_sequence_is_any_if_the_window_fits():
    window = Window(64, 16)  # up to 31 + 63 + 16 tokens between two limits of blocks
    assert window.most_blocks(1000) == 4
    windows = Windows((window,))
    longest = [windows.longest(*limits) for limits in ((4, 1000), (3, 1000), (3, 50))]
    assert longest == [1000, 96, 50]
    both = Windows((window, Window(None, 16)))
    longest = [both.longest(*limits) for limits in ((36, 1000), (35, 1000), (7, 1000), (1, 1000))]
    assert longest == [1000, 992, 96, 0]


def test_a_sequence_longer_than_the_pool_holds_what_its_window_needs():
    s = scheduler(n_blocks=4, windows=(64,))
    one = sequence(700, max_tokens=900)
    s.add(one)
    held = []
    while one.state is not State.FINISHED:
        run(s)
        held.append(s._pool.n_used)
    assert one.n_output == 900
    assert max(held) == 4
    assert max(held[60:-1]) == 3  # a decode: 64 tokens that touch three blocks at most
    assert s._pool.n_free == 4


def test_what_slides_out_of_a_window_serves_others():
    s = scheduler(n_blocks=8, windows=(40,))
    first, second = sequence(20, max_tokens=400), sequence(20, max_tokens=400)
    s.add(first)
    s.add(second)
    while first.state is not State.FINISHED:
        run(s)
    assert (first.n_preempted, second.n_preempted) == (0, 0)
    assert len(second.tokens) > 400


def test_tables_say_which_blocks_are_gone():
    s = scheduler(windows=(33,))
    one = sequence(16, max_tokens=100)
    s.add(one)
    while one.n_cached < 96:
        run(s)
    # The next token is at position 96 and sees those from 64 on.
    assert one.tables[0].blocks[:2] == [NO_BLOCK, NO_BLOCK]
    assert s.blocks.tables[one.table_row, 0, :3].tolist() == one.tables[0].blocks[:3]
    assert one.tables[0].blocks[2] != NO_BLOCK
    assert s._pool.n_used == len(one.tables[0].blocks) - 2


def test_guesses_that_fail_take_nothing_that_is_still_seen():
    s = scheduler(max_step_tokens=64, max_step_logits=64, windows=(33,))
    one = sequence(64, max_tokens=100)
    s.add(one)
    run(s)
    step = s.schedule()
    (turn,) = step.turns
    turn.draft = [7] * s.reserve_draft(step, turn, 60)
    assert len(turn.draft) == 60
    complete(s, step, accepted=[0])
    # With the guesses the blocks before 96 were out of sight; without them, token 65 is next.
    assert (one.n_cached, one.tables[0].n_dropped) == (65, 1)
    step = s.schedule()
    (turn,) = step.turns
    turn.draft = [one.request.choice] * s.reserve_draft(step, turn, 60)
    complete(s, step, accepted=[60])
    assert (one.n_cached, one.tables[0].n_dropped) == (126, 2)


def test_answers_to_one_prompt_give_shared_blocks_back_one_by_one():
    s = scheduler(max_step_tokens=200, windows=(64,))
    alike = [sequence(128, 60, text=1), sequence(128, 1, text=1), sequence(128, 60, text=1)]
    s.add(alike[0])
    run(s)
    for one in alike[1:]:
        s.add(one)
    s.schedule()
    shared = alike[0].tables[0].blocks[2]
    assert [one.tables[0].blocks[:3] for one in alike] == [[NO_BLOCK, NO_BLOCK, shared]] * 3
    ahead, *others = alike
    while ahead.tables[0].n_dropped == 2:
        turns = s.schedule().turns
        s.record(Step([turn for turn in turns if turn.sequence is ahead]), [[Sampled(0, 0.0)]])
    assert ahead.tables[0].blocks[2] == NO_BLOCK
    for one in others:
        assert one.tables[0].blocks[2] == shared
        assert not s._pool.is_free(shared)
        s.finish(one)
    assert s._pool.is_free(shared)


def test_a_text_is_found_by_the_blocks_in_its_window():
    s = scheduler(n_blocks=8, max_step_tokens=64, windows=(64,))
    first = sequence(640, 10, text=1)
    run_to_end(s, first)
    # Of 20 blocks the last eight are still there.
    goes_on, branches = sequence(640, 1, text=1), sequence(640, 1, text=1)
    branches.tokens[600:] = sequence(40).tokens
    early = sequence(200, 1, text=1)
    for one in (goes_on, branches, early):
        run_to_end(s, one)
    assert [one.n_reused for one in (goes_on, branches, early)] == [639, 600, 0]


def test_a_text_is_not_found_behind_a_gap_in_its_window():
    s = scheduler(n_blocks=40, max_step_tokens=64, windows=(64,))
    first = sequence(320, 1, text=1)
    run_to_end(s, first)
    s._pool.forget(s._pool.find(first.block_key(7)))
    again = sequence(320, 1, text=1)
    s.add(again)
    s.schedule()
    # What block 8 begins with sees block 7, and so does what follows it.
    assert again.n_reused == 7 * 32


def test_a_preempted_sequence_goes_on_behind_its_window():
    s = scheduler(n_blocks=8, max_step_tokens=40, windows=(100,))
    old, new = sequence(20, 400), sequence(20, 400)
    s.add(old)
    s.add(new)
    step = step_that_preempts(s)  # they were admitted with a block each, and have four by now
    assert step.preempted == [new]
    assert new.tables == []
    s.finish(old)
    step = s.schedule()
    assert step.admitted == [new]
    assert new.n_cached == 96  # the first of the blocks that it lost was needed at once
    complete(s, step)
    while new.state is not State.FINISHED:
        run(s)
    assert (new.n_output, s._pool.n_used) == (400, 0)


def test_steps_are_paced_by_what_the_window_shows(monkeypatch):
    pacer, asked = Pacer(0.3), []
    monkeypatch.setattr(pacer, "spare_tokens", lambda *size: asked.append(size) or 20)
    s = Scheduler(SchedulerConfig(4, 16, 16, 4096, windows=(64,)), BlockPool(100), pacer)
    for one in (sequence(300), sequence(300)):
        s.add(one)
    for _ in range(30):
        run(s)
    # A decode behind 310 tokens, and a prompt behind 154, both of which see 64.
    assert asked[-1] == (Work(1, 64), 64)
    step = s.schedule()
    assert s.work_of(step.turns) == Work(16, 16 * 64)
