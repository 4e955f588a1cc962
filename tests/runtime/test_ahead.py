"""Steps begun ahead, with the real library: the bits are those of steps one after the other."""

import os
import resource
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from failing_model import FAILS, failing_checkpoint
from lanewise.commands.selftest import CONFIG
from lanewise.runtime import DRAWN_BEFORE, Batch, Draw, Model, NativeError, Sampling, Session

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

SIZES = {"blocks": 16, "max_batch_tokens": 64, "max_batch_logits": 8}
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
LENGTH = 40


@pytest.fixture(scope="module")
def model():
    with Model.load(failing_checkpoint(), isa=os.environ.get("LANEWISE_ISA")) as model:
        yield model


def samplings() -> list[Sampling]:
    return [Sampling(seed=i, temperature=1.3, want_logprob=True) for i in range(len(PROMPTS))]


def batch(tokens: list[list[int]], context: list[int], **changes) -> Batch:
    n, starts = len(tokens), np.cumsum([0, *map(len, tokens)])
    table = [[i, i + n, i + 2 * n] for i in range(n)]
    ids = [token for one in tokens for token in one]
    return Batch(ids, starts.tolist(), context, table, (starts[1:] - 1).tolist(), **changes)


def draws(of: list[Sampling], context: list[int]) -> list[Draw]:
    return [Draw(one, position) for one, position in zip(of, context, strict=True)]


def test_steps_begun_ahead_draw_what_steps_one_after_the_other_do(model):
    lengths = [len(one) for one in PROMPTS]
    wanted, of = [], samplings()
    with Session(model, threads=2, **SIZES) as session:
        given, context = PROMPTS, [0] * len(PROMPTS)
        for _ in range(LENGTH):
            following = [len(one) + c for one, c in zip(given, context, strict=True)]
            wanted.append(session.step_and_draw(batch(given, context), draws(of, following)))
            given, context = [[one.token] for one in wanted[-1]], following
    got, of = [], samplings()
    with Session(model, threads=2, **SIZES) as session:
        session.start(batch(PROMPTS, [0] * len(PROMPTS)), draws(of, lengths))
        for step in range(1, LENGTH):
            context = [length + step - 1 for length in lengths]
            pending = [[DRAWN_BEFORE + i] for i in range(len(PROMPTS))]
            session.start(batch(pending, context), draws(of, [one + 1 for one in context]))
            got.append(session.finish())
        while not session.wait(0.01):
            pass
        got.append(session.finish())
        assert session.counters().steps == LENGTH
    assert [one.drawn for one in got] == wanted
    for one, following in pairwise(got):
        assert one.began < one.ended <= following.began


def test_penalties_see_the_token_that_the_step_before_draws(model):
    """Each token once only, by turns of one penalty and the other, from a small vocabulary."""
    mask = np.zeros(CONFIG.vocab_size // 32, np.uint32)
    mask[0] = (1 << 24) - 1
    of = [
        Sampling(seed=1, mask=mask, presence_penalty=100.0),
        Sampling(seed=2, mask=mask, repetition_penalty=1.4, frequency_penalty=0.5),
        Sampling(seed=3, mask=mask),
    ]

    def draws_after(texts: list[list[int]], n_more: int) -> list[Draw]:
        return [
            Draw(sampling, len(text) + n_more, len(prompt), np.array(text, np.uint32))
            for sampling, text, prompt in zip(of, texts, PROMPTS, strict=True)
        ]

    texts = [list(one) for one in PROMPTS]
    with Session(model, threads=2, **SIZES) as session:
        given, context = PROMPTS, [0] * len(PROMPTS)
        for _ in range(12):
            drawn = session.step_and_draw(batch(given, context), draws_after(texts, 0))
            context = [len(text) for text in texts]
            given = [[one.token] for one in drawn]
            for text, one in zip(texts, drawn, strict=True):
                text.append(one.token)
    assert len(set(texts[0][3:])) == 12
    again = [list(one) for one in PROMPTS]
    with Session(model, threads=2, **SIZES) as session:
        session.start(batch(PROMPTS, [0] * len(PROMPTS)), draws_after(again, 0))
        pending = [[DRAWN_BEFORE + i] for i in range(len(PROMPTS))]
        for step in range(12):
            if step < 11:
                session.start(batch(pending, [len(text) for text in again]), draws_after(again, 1))
            for text, one in zip(again, session.finish().drawn, strict=True):
                text.append(one.token)
    assert again == texts


def test_a_token_drawn_before_may_follow_a_step_that_was_not_begun_ahead(model):
    of = samplings()
    with Session(model, threads=1, **SIZES) as session:
        first = session.step_and_draw(batch([[1, 2]], [0]), draws(of[:1], [2]))
        named = session.step_and_draw(batch([[first[0].token]], [2]), draws(of[:1], [3]))
        session.step_and_draw(batch([[1, 2]], [0]), draws(of[:1], [2]))
        again = session.step_and_draw(batch([[DRAWN_BEFORE]], [2]), draws(of[:1], [3]))
    assert again == named


def test_what_cannot_be_is_refused_and_the_session_goes_on(model):
    of = samplings()
    prompt, draw = batch([[1, 2]], [0]), draws(of[:1], [2])
    with Session(model, threads=1, **SIZES) as session:
        with pytest.raises(NativeError, match="no step was started"):
            session.finish()
        with pytest.raises(NativeError, match="no step was started"):
            session.wait(0)
        with pytest.raises(
            NativeError, match="draw 0 of the step before is asked for, which has 0"
        ):
            session.start(batch([[DRAWN_BEFORE]], [0]), draw)
        session.start(prompt, draw)
        with pytest.raises(
            NativeError, match="draw 1 of the step before is asked for, which has 1"
        ):
            session.start(batch([[DRAWN_BEFORE + 1]], [2]), draw)
        with pytest.raises(NativeError, match="a step that was started is not finished"):
            session.step_and_draw(prompt, draw)
        session.start(prompt, draw)
        with pytest.raises(NativeError, match="2 steps are not finished, the most there may be"):
            session.start(prompt, draw)
        first, second = session.finish(), session.finish()
        assert first.drawn == second.drawn == session.step_and_draw(prompt, draw)


def test_a_failed_step_takes_those_begun_behind_it_along(model):
    of = samplings()
    prompt, draw = batch([[1, 2]], [0]), draws(of[:1], [2])
    with Session(model, threads=1, **SIZES) as session:
        wanted = session.step_and_draw(prompt, draw)
        session.start(batch([[1, FAILS]], [0]), draw)
        session.start(batch([[DRAWN_BEFORE]], [2]), draw)
        with pytest.raises(NativeError, match="NaN or infinity in the activations"):
            session.finish()
        with pytest.raises(NativeError, match="the step before this one failed"):
            session.finish()
        with pytest.raises(NativeError, match="which has 0"):
            session.start(batch([[DRAWN_BEFORE]], [2]), draw)
        session.start(prompt, draw)
        assert session.finish().drawn == wanted


def test_a_session_may_be_closed_while_steps_run(model):
    of, before = samplings(), n_threads()
    session = Session(model, threads=2, **SIZES)
    session.start(batch([[1] * 30], [0]), draws(of[:1], [30]))
    session.start(batch([[DRAWN_BEFORE]], [30]), draws(of[:1], [31]))
    assert n_threads() == before + 2  # a worker, and the one that runs what was begun
    session.close()
    assert n_threads() == before
    session.close()
    with pytest.raises(ValueError, match="the session is closed"):
        session.finish()


def n_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_where_the_system_refuses_a_thread_steps_run_one_after_the_other():
    # In a process of its own: glibc keeps stacks of threads that have ended, and needs no memory
    # for the next ones.
    path = os.pathsep.join(sys.path)  # where the helpers lie
    command = [sys.executable, __file__]
    subprocess.run(command, env=dict(os.environ, PYTHONPATH=path), check=True)


def refuse_the_thread() -> None:
    """What the test above runs: no memory for a thread's stack."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with Model.load(failing_checkpoint(), isa=os.environ.get("LANEWISE_ISA")) as model:
        prompt, draw = batch([[1, 2]], [0]), draws(samplings()[:1], [2])
        with Session(model, threads=1, **SIZES) as session:
            in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 20), limits[1]))
            with pytest.raises(NativeError, match="no memory or thread for steps started ahead"):
                session.start(prompt, draw)
            wanted = session.step_and_draw(prompt, draw)
            resource.setrlimit(resource.RLIMIT_AS, limits)
            session.start(prompt, draw)
            assert session.finish().drawn == wanted


if __name__ == "__main__":
    refuse_the_thread()
