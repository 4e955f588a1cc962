"""Threads for steps of few rows: chosen by measuring a session, whose answers are not touched."""

import pytest

from lanewise.runtime import step_threads
from lanewise.runtime.step_threads import CONTEXT, MAX_ROWS, choose, counts, limit_threads, measure


class Machine:
    """A session whose steps take what its threads make of them, and the clock beside it."""

    def __init__(self, milliseconds, blocks=100, groups=1):
        self.milliseconds, self.blocks, self.groups = milliseconds, blocks, groups
        self.context_length = 2048
        self.threads, self.now, self.batches = None, 0.0, []

    def limit_threads(self, threads, max_rows, max_context):
        assert (max_rows, max_context) == (MAX_ROWS, CONTEXT)
        self.threads = threads

    def step(self, batch):
        self.batches.append(batch)
        self.now += 1e-3 * self.milliseconds(self.threads)

    def clock(self):
        return self.now


def test_candidates_are_whole_groups():
    assert counts(192) == [192, 96, 48, 24, 16, 8]
    assert counts(100) == [100, 56, 32, 16, 8]
    assert counts(9) == [9, 8]
    assert counts(8) == [8]
    assert counts(1) == [1]


def test_the_fewest_threads_that_keep_up_are_chosen():
    assert choose({96: 2.0, 48: 1.99, 24: 2.02, 8: 4.0}) == 24
    assert choose({96: 1.0, 48: 1.1}) == 96


def test_a_session_is_measured_behind_a_context_that_it_has_room_for():
    machine = Machine(lambda threads: 2.0 if threads >= 16 else 3.5)
    seconds = measure(machine, 96, machine.clock)
    assert seconds == pytest.approx({96: 2e-3, 48: 2e-3, 24: 2e-3, 16: 2e-3, 8: 3.5e-3})
    batch = machine.batches[0]
    assert batch.context_lens == [1024]
    assert batch.block_tables.tolist() == [[list(range(33))]]
    small = Machine(lambda threads: 1.0, blocks=3, groups=2)
    measure(small, 16, small.clock)
    assert small.batches[0].context_lens == [64]
    assert small.batches[0].block_tables.tolist() == [[[0, 1, 2], [0, 1, 2]]]


def test_slow_models_are_measured_for_a_second():
    machine = Machine(lambda threads: 400.0)
    measure(machine, 16, machine.clock)
    assert machine.now == pytest.approx(1.6)  # twice: to warm up, and to measure


def test_what_is_asked_for_is_not_measured(monkeypatch, caplog):
    machine = Machine(lambda threads: pytest.fail("a step was run"))
    assert limit_threads(machine, 96, 20) == machine.threads == 20
    assert limit_threads(machine, 4, 20) == machine.threads == 4
    assert limit_threads(machine, 8, None) == machine.threads == 8  # nothing to choose
    monkeypatch.setattr(step_threads, "measure", lambda *_: {16: 1.0, 8: 1.0})
    caplog.set_level("INFO")
    assert limit_threads(machine, 16, None) == machine.threads == 8
    assert "steps of few rows run on 8 of 16 threads" in caplog.text
