"""Steps and sampling, against a library of Python functions."""

import gc

import numpy as np
import pytest

from lanewise.runtime import (
    Batch,
    Draw,
    Model,
    NativeError,
    OperationTime,
    Sampled,
    Sampling,
    Session,
    StepRefusedError,
)


@pytest.fixture
def session(fake, checkpoint):
    model = Model.load(checkpoint)
    return Session(model, threads=2, blocks=8, max_batch_tokens=6, max_batch_logits=3)


def batch(**changes):
    fields = {
        "token_ids": [10, 11, 12],
        "query_start": [0, 2, 3],
        "context_lens": [0, 31],
        "block_tables": [[4, 0], [5, 6]],
        "logit_rows": [1, 2],
    }
    return Batch(**(fields | changes))


def test_step_gives_the_library_lists_and_returns_one_row_per_logit(fake, session):
    logits = session.step(batch())
    assert fake.seen == {
        "tokens": [10, 11, 12],
        "context": [0, 31],
        "tables": [[4, 0], [5, 6]],
    }
    assert logits.shape == (2, 50)
    assert logits[:, 0].tolist() == [11.0, 12.0]


def test_step_takes_arrays_and_views_that_are_not_contiguous(fake, session):
    tables = np.arange(16, dtype=np.uint32).reshape(2, 8)[:, ::2]
    session.step(batch(block_tables=tables, token_ids=np.array([1, 2, 3], np.uint32)))
    assert fake.seen["tokens"] == [1, 2, 3]
    assert fake.seen["tables"] == [[0, 2], [8, 10]]


def test_tables_in_an_array_are_read_where_they_stand(fake, session):
    tables = np.array([[7, 6], [3, 2], [5, 4]], np.uint32)
    session.step(batch(block_tables=tables, table_rows=[2, 0]))
    assert fake.seen["tables"] == [[5, 4], [7, 6]]
    tables[0] = (1, 0)
    session.step(batch(block_tables=tables, table_rows=[0, 1]))
    assert fake.seen["tables"] == [[1, 0], [3, 2]]


def test_lists_of_blocks_are_read_anew_each_time(fake, session):
    tables = [[4, 0], [5, 6]]
    session.step(batch(block_tables=tables))
    tables[1] = [2, 3]
    session.step(batch(block_tables=tables))
    assert fake.seen["tables"] == [[4, 0], [2, 3]]


def test_arrays_of_a_step_are_reused(session):
    first = session.step(batch())
    second = session.step(batch(token_ids=[20, 21, 22]))
    assert np.shares_memory(first, second)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_start": [0, 3]}, "query_start has 2 entries for 2 sequences"),
        ({"query_start": [0, 2, 4]}, "query_start ends at 4 for 3 tokens"),
        ({"block_tables": [[1, 2]]}, "block_tables has 1 rows; sequences have rows up to 1"),
        ({"table_rows": [0, 2]}, "block_tables has 2 rows; sequences have rows up to 2"),
        ({"table_rows": [0]}, "table_rows has 1 entries for 2 sequences"),
        ({"block_tables": [1, 2]}, r"block_tables has shape \(2,\)"),
        ({"logit_rows": [0, 1, 2, 2]}, "logit_rows has 4 entries; the session takes 3"),
        (
            {"token_ids": [1] * 7, "query_start": [0, 2, 7]},
            "token_ids has 7 entries; the session takes 6",
        ),
    ],
)
def test_arrays_that_do_not_fit_together_never_reach_the_library(fake, session, changes, message):
    with pytest.raises(StepRefusedError, match=message):
        session.step(batch(**changes))
    assert not [call for call in fake.calls if call[0] == "step"]


def test_failed_step_raises_the_last_error(fake, session):
    fake.failure = ("step", "token_ids[1] is 77; the vocabulary has 50")
    with pytest.raises(NativeError, match=r"token_ids\[1\] is 77"):
        session.step(batch())


def test_draws_pass_every_row_and_keep_their_arrays_alive(fake, session):
    rows = [
        Draw(
            Sampling(temperature=0.0, seed=-1),
            position=9,
            history=np.arange(5, dtype=np.uint32)[1:],
            n_prompt=2,
        ),
        Draw(
            Sampling(
                temperature=0.5,
                bias_ids=np.array([3, 4], np.uint32),
                bias_values=np.array([-1.5, 2.0], np.float32),
                mask=np.array([5, 0], np.uint32),
                n_top_logprobs=2,
            ),
            forced_token=7,
        ),
    ]
    for _ in range(2):  # the second time from what the session has kept
        gc.collect()
        assert session.step_and_draw(batch(), rows) == [
            Sampled(token=11, logprob=0.0, top=()),
            Sampled(token=12, logprob=0.0, top=((0, 0.0), (1, -1.0))),
        ]
        first, second = fake.draws
        assert (first["history"], first["n_prompt"]) == ([1, 2, 3, 4], 2)
        assert (first["position"], second["position"]) == (9, 0)
        assert (first["forced_token"], second["forced_token"]) == (-1, 7)
        assert first["seed"] == 2**64 - 1
        assert (second["temperature"], second["mask"]) == (0.5, 5)
        assert second["bias"] == {3: -1.5, 4: 2.0}


def test_draw_of_one_step_does_not_leak_into_the_next(fake, session):
    history = np.array([1, 2], np.uint32)
    masked = Draw(Sampling(mask=np.array([5, 0], np.uint32)), 3, 1, history, forced_token=4)
    session.step_and_draw(batch(logit_rows=[1]), [masked])
    session.step_and_draw(batch(logit_rows=[1]), [Draw(Sampling())])
    (only,) = fake.draws
    assert (only["mask"], only["history"], only["n_prompt"]) == (None, [], 0)
    assert (only["position"], only["forced_token"]) == (0, -1)
    session.step(batch())
    assert fake.draws is None


def test_place_of_a_draw_follows_whoever_draws_there(fake, session):
    mine, others = Sampling(seed=1), Sampling(seed=2)
    for sampling in (mine, mine, others, mine):
        session.step_and_draw(batch(logit_rows=[1]), [Draw(sampling)])
        assert [draw["seed"] for draw in fake.draws] == [sampling.seed]


def test_sampling_is_kept_as_long_as_its_owner_keeps_it(fake, session):
    sampling = Sampling()
    for _ in range(3):
        session.step_and_draw(batch(logit_rows=[1]), [Draw(sampling)])
    assert len(session._samplings) == 1
    del sampling
    gc.collect()
    assert len(session._samplings) == 0


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            Draw(Sampling(bias_ids=np.array([1], np.uint32))),
            "bias_ids has 1 entries, bias_values 0",
        ),
        (
            Draw(Sampling(mask=np.array([1], np.uint32))),
            "mask has 1 words; accepted: a bit for each of 50",
        ),
        (
            Draw(Sampling(), history=np.array([1], np.uint32), n_prompt=2),
            "n_prompt is 2; history has 1 entries",
        ),
    ],
)
def test_sampling_arrays_of_the_wrong_length_are_refused(fake, session, draw, message):
    with pytest.raises(StepRefusedError, match=message):
        session.step_and_draw(batch(logit_rows=[0]), [draw])
    assert not [call for call in fake.calls if call[0] == "step"]


def test_every_row_of_logits_needs_a_draw(fake, session):
    with pytest.raises(StepRefusedError, match="1 draws for 2 rows of logits"):
        session.step_and_draw(batch(), [Draw(Sampling())])
    assert not [call for call in fake.calls if call[0] == "step"]


def test_counters_are_copied_out(session):
    counters = session.counters()
    assert (counters.steps, counters.gemm_rows) == (7, 9)
    assert (counters.native_seconds, counters.held_seconds) == (0.5, 0.25)


def test_draws_are_held_and_released_in_the_library(fake, session):
    session.hold_draws()
    session.release_draws()
    assert [call[0] for call in fake.calls[-2:]] == ["hold_draws", "release_draws"]
    fake.failure = ("release_draws", "nothing holds the draws")
    with pytest.raises(NativeError, match="nothing holds the draws"):
        session.release_draws()


def test_profile_is_read_in_full_and_then_stopped(fake, session):
    session.start_profile()
    rows = session.stop_profile()
    assert rows == [
        OperationTime("op0", "", 1.5, 0.25, 100, 2**40),
        OperationTime("op1", "gemv_1", 2.5, 0.25, 101, 2**40),
    ]
    assert fake.calls[-4:] == [
        ("profile", 1),
        ("profile_rows", 0),
        ("profile_rows", 2),
        ("profile", 0),
    ]
    assert session.stop_profile() == []


def test_closed_session_cannot_step(session):
    session.close()
    with pytest.raises(ValueError, match="the session is closed"):
        session.step(batch())
