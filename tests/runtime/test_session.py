"""Steps and sampling, against a library of Python functions."""

import gc

import numpy as np
import pytest

from lanewise.runtime import Batch, Model, NativeError, OperationTime, Sampled, Sampling, Session


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


def test_arrays_of_a_step_are_reused(session):
    first = session.step(batch())
    second = session.step(batch(token_ids=[20, 21, 22]))
    assert np.shares_memory(first, second)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_start": [0, 3]}, "query_start has 2 entries for 2 sequences"),
        ({"query_start": [0, 2, 4]}, "query_start ends at 4 for 3 tokens"),
        ({"block_tables": [[1, 2]]}, r"block_tables has shape \(1, 2\)"),
        ({"block_tables": [1, 2]}, r"block_tables has shape \(2,\)"),
        ({"logit_rows": [0, 1, 2, 2]}, "logit_rows has 4 entries; the session takes 3"),
        (
            {"token_ids": [1] * 7, "query_start": [0, 2, 7]},
            "token_ids has 7 entries; the session takes 6",
        ),
    ],
)
def test_arrays_that_do_not_fit_together_never_reach_the_library(fake, session, changes, message):
    with pytest.raises(ValueError, match=message):
        session.step(batch(**changes))
    assert not [call for call in fake.calls if call[0] == "step"]


def test_failed_step_raises_the_last_error(fake, session):
    fake.failure = ("step", "token_ids[1] is 77; the vocabulary has 50")
    with pytest.raises(NativeError, match=r"token_ids\[1\] is 77"):
        session.step(batch())


def test_sample_passes_every_row_and_keeps_its_arrays_alive(fake, session):
    logits = session.step(batch())
    rows = [
        Sampling(temperature=0.0, history=np.arange(5, dtype=np.uint32)[1:], n_prompt=2, seed=-1),
        Sampling(
            temperature=0.5,
            bias_ids=np.array([3, 4], np.uint32),
            bias_values=np.array([-1.5, 2.0], np.float32),
            mask=np.array([5, 0], np.uint32),
            n_top_logprobs=2,
        ),
    ]
    gc.collect()
    assert session.sample(logits, rows) == [
        Sampled(token=11, logprob=0.0, top=[]),
        Sampled(token=12, logprob=0.0, top=[(0, 0.0), (1, -1.0)]),
    ]
    first, second = fake.params
    assert first["history"] == [1, 2, 3, 4]
    assert first["seed"] == 2**64 - 1
    assert (second["temperature"], second["mask"]) == (0.5, 5)
    assert second["bias"] == {3: -1.5, 4: 2.0}


def test_parameters_of_one_step_do_not_leak_into_the_next(fake, session):
    logits = session.step(batch(logit_rows=[1]))
    session.sample(logits, [Sampling(mask=np.array([5, 0], np.uint32))])
    session.sample(logits, [Sampling()])
    assert fake.params[0]["mask"] is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Sampling(bias_ids=np.array([1], np.uint32)), "bias_ids has 1 entries, bias_values 0"),
        (
            Sampling(mask=np.array([1], np.uint32)),
            "mask has 1 words; accepted: a bit for each of 50",
        ),
        (
            Sampling(history=np.array([1], np.uint32), n_prompt=2),
            "n_prompt is 2; history has 1 entries",
        ),
    ],
)
def test_sampling_arrays_of_the_wrong_length_are_refused(session, row, message):
    logits = session.step(batch(logit_rows=[0]))
    with pytest.raises(ValueError, match=message):
        session.sample(logits, [row])


def test_sample_needs_one_row_of_parameters_for_each_row_of_logits(session):
    logits = session.step(batch())
    with pytest.raises(ValueError, match=r"logits have shape \(2, 50\); accepted: \(1, 50\)"):
        session.sample(logits, [Sampling()])


def test_counters_are_copied_out(session):
    counters = session.counters()
    assert (counters.steps, counters.gemm_rows, counters.native_seconds) == (7, 9, 0.5)


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
