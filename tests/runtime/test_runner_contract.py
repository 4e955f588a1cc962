"""What the engine relies on, of the library's session and of the toy that stands in for it."""

import os
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from failing_model import FAILS, failing_checkpoint
from lanewise.commands.bench_replay import ReplayRunner
from lanewise.commands.selftest import CONFIG
from lanewise.engine.base.runner import AheadRunner
from lanewise.runtime import (
    BLOCK_TOKENS,
    DRAWN_BEFORE,
    NO_TOKEN,
    Batch,
    Draw,
    Model,
    Sampling,
    Session,
    StepRefusedError,
)
from toy import ToyRunner

N_BLOCKS, VOCAB = 8, CONFIG.vocab_size
GREEDY = Sampling(temperature=0.0, want_logprob=True)
NOTHING = Sampling(mask=np.zeros(VOCAB // 32, np.uint32))  # no token may be drawn
PROMPT = [5, 3, 8, 1, 9, 2]


def toy() -> ToyRunner:
    made = ToyRunner(n_blocks=N_BLOCKS, vocab_size=VOCAB, max_batch_tokens=64, max_batch_logits=4)
    made.fail_on_token = FAILS
    return made


@pytest.fixture
def session(request):
    request.getfixturevalue("library")
    with Model.load(failing_checkpoint(), isa=os.environ.get("LANEWISE_ISA")) as model:
        yield Session(model, threads=2, blocks=N_BLOCKS, max_batch_tokens=64, max_batch_logits=4)


@pytest.fixture(params=["toy", pytest.param("session", marks=pytest.mark.native)])
def runner(request):
    made = toy() if request.param == "toy" else request.getfixturevalue("session")
    yield made
    made.close()


def batch(tokens: list[int], context: int, block: int = 0, **changes) -> Batch:
    """One sequence in one block, with a draw after its last token."""
    return Batch(
        token_ids=tokens,
        query_start=[0, len(tokens)],
        context_lens=[context],
        block_tables=np.array([[block]], np.uint32),
        logit_rows=[len(tokens) - 1],
        table_rows=[0],
        **changes,
    )


def draw(position: int, sampling: Sampling = GREEDY) -> list[Draw]:
    return [Draw(sampling, position)]


def texts_of(runner, n: int, block: int = 0) -> list[int]:
    """The answer to PROMPT, one step after the other."""
    given, context, drawn = PROMPT, 0, []
    for _ in range(n):
        following = context + len(given)
        (one,) = runner.step_and_draw(batch(given, context, block), draw(following))
        drawn.append(one.token)
        given, context = [one.token], following
    return drawn


def test_parts_of_a_prompt_are_the_whole(runner):
    (whole,) = runner.step_and_draw(batch(PROMPT, 0), draw(len(PROMPT)))
    none = replace(batch(PROMPT[:4], 0, block=1), logit_rows=[])
    assert runner.step_and_draw(none, []) == []
    (parts,) = runner.step_and_draw(batch(PROMPT[4:], 4, block=1), draw(len(PROMPT)))
    assert parts == whole


def test_steps_begun_ahead_end_in_order_and_read_what_the_one_before_drew(runner):
    wanted = texts_of(runner, 6)
    runner.start(batch(PROMPT, 0, block=1), draw(len(PROMPT)))
    got = []
    for step in range(1, 6):
        context = len(PROMPT) + step - 1
        runner.start(batch([DRAWN_BEFORE], context, block=1), draw(context + 1))
        got.append(runner.finish())
    while not runner.wait(1.0):
        pass
    got.append(runner.finish())
    assert [one.drawn[0].token for one in got] == wanted
    assert all(a.began <= a.ended <= b.began for a, b in pairwise(got))


def test_behind_a_step_that_failed_nothing_is_done(runner):
    wanted = texts_of(runner, 2)
    runner.start(batch([*PROMPT, FAILS], 0), draw(len(PROMPT) + 1))
    runner.start(batch([DRAWN_BEFORE], len(PROMPT) + 1), draw(len(PROMPT) + 2))
    with pytest.raises(Exception, match=r"NaN or infinity|is not finite") as failed:
        runner.finish()
    assert not isinstance(failed.value, StepRefusedError)
    with pytest.raises(StepRefusedError):
        runner.finish()
    assert texts_of(runner, 2) == wanted


@pytest.mark.parametrize("ahead", [False, True])
def test_a_draw_that_no_step_made_is_refused_and_nothing_is_begun(runner, ahead):
    wanted = texts_of(runner, 2)
    runner.step_and_draw(replace(batch([1], 0, block=1), logit_rows=[]), [])
    refused = batch([DRAWN_BEFORE], len(PROMPT)), draw(len(PROMPT) + 1)
    with pytest.raises(StepRefusedError):
        runner.start(*refused) if ahead else runner.step_and_draw(*refused)
    assert texts_of(runner, 2) == wanted


def test_blocks_are_copied_by_a_step_that_fails(runner):
    wanted = texts_of(runner, 2)
    with pytest.raises(Exception, match=r"NaN or infinity|is not finite"):
        runner.step_and_draw(batch([FAILS], 0, 2, block_copies=[(0, 1)]), draw(1))
    following = len(PROMPT) + 1
    (one,) = runner.step_and_draw(batch(wanted[:1], len(PROMPT), block=1), draw(following))
    assert one.token == wanted[1]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_draw_that_fails_leaves_the_others_of_its_step_and_the_step_behind(runner, ahead):
    wanted = texts_of(runner, 2)
    both = Batch(
        token_ids=[*PROMPT, 1, 2],
        query_start=[0, len(PROMPT), len(PROMPT) + 2],
        context_lens=[0, 0],
        block_tables=np.array([[1], [2]], np.uint32),
        logit_rows=[len(PROMPT) - 1, len(PROMPT) + 1],
        table_rows=[0, 1],
    )
    draws = draw(len(PROMPT)) + draw(2, NOTHING)
    behind = Batch(
        token_ids=[DRAWN_BEFORE, DRAWN_BEFORE + 1],
        query_start=[0, 1, 2],
        context_lens=[len(PROMPT), 2],
        block_tables=both.block_tables,
        logit_rows=[0, 1],
        table_rows=[0, 1],
    )
    draws_behind = draw(len(PROMPT) + 1) + draw(3)
    if ahead:
        runner.start(both, draws)
        runner.start(behind, draws_behind)
        drawn, after = (runner.finish().drawn for _ in range(2))
    else:
        drawn = runner.step_and_draw(both, draws)
        after = runner.step_and_draw(behind, draws_behind)
    assert [drawn[0].token, after[0].token] == wanted
    assert drawn[0].error is None
    assert (drawn[1].token, drawn[1].logprob, drawn[1].top) == (0, 0.0, ())
    assert drawn[1].error.status == NO_TOKEN
    assert "bias and mask allow no token" in str(drawn[1].error)
    # In the place of the token that is not there the step behind found 0.
    runner.step_and_draw(batch([1, 2], 0, block=3), draw(2))
    (known,) = runner.step_and_draw(batch([0], 2, block=3), draw(3))
    assert after[1] == known


def test_copies_are_made_in_their_order(runner):
    wanted = texts_of(runner, 2)
    texts_of(runner, 1, block=1)
    copies = [(0, 1), (1, 2)]
    following = len(PROMPT) + 1
    step = batch(wanted[:1], len(PROMPT), block=2, block_copies=copies)
    (one,) = runner.step_and_draw(step, draw(following))
    assert one.token == wanted[1]


@pytest.mark.parametrize("n_holds", [1, 2])
def test_draws_wait_until_every_hold_is_released(runner, n_holds):
    released = []

    def release(after_s: float) -> None:
        for _ in range(n_holds):
            threading.Event().wait(after_s)
            released.append(True)
            runner.release_draws()

    for after_s in (0.01, 0.1, 1.0):  # a busy machine may take longer for the step itself
        released.clear()
        for _ in range(n_holds):
            runner.hold_draws()
        releasing = threading.Thread(target=release, args=(after_s,))
        releasing.start()
        runner.step_and_draw(batch(PROMPT, 0), draw(len(PROMPT)))
        assert len(released) == n_holds
        releasing.join()
        if runner.counters().held_seconds > 0:
            break
    assert 0 < runner.counters().held_seconds <= runner.counters().native_seconds


def test_steps_and_tokens_are_counted(runner):
    texts_of(runner, 3)
    counters = runner.counters()
    assert (counters.steps, counters.tokens) == (3, len(PROMPT) + 2)
    assert BLOCK_TOKENS * counters.native_seconds > 0


def test_a_replay_is_a_runner_that_begins_nothing_ahead(runner):
    replay = ReplayRunner(runner, [[*PROMPT, 11, 12]])
    assert isinstance(runner, AheadRunner)
    assert not isinstance(replay, AheadRunner)
    assert texts_of(replay, 2) == [11, 12]
    assert replay.counters() == runner.counters()
