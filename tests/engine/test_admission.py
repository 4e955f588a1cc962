"""The door: what is turned away, with a time after which to try again that was measured."""

import math

import pytest

from lanewise.engine.base.stream import EngineStoppedError, QueueFullError
from lanewise.engine.scheduling.admission import RATE_WINDOW_S, Admission, Rate
from toy_server import make_engine


@pytest.fixture
def door():
    engine, _ = make_engine()
    admission = Admission(10, 1000, engine.metrics)
    admission.open()
    return admission


def accept(door: Admission, n_sequences: int, n_tokens: int, client: int = 0) -> None:
    door.enter(client, n_sequences, n_tokens, lambda: None)


def test_rate_is_that_of_the_last_half_minute():
    rate = Rate()
    assert rate.seconds_for(1, 0.0) == math.inf
    for second in range(200):
        rate.note(3.0, float(second))
    assert rate.seconds_for(30, 199.0) == pytest.approx(10, rel=0.05)
    for second in range(200, 500):
        rate.note(12.0, float(second))
    assert rate.seconds_for(30, 499.0) == pytest.approx(2.5, rel=0.05)
    assert rate.seconds_for(30, 499.0 + RATE_WINDOW_S) > 5


def test_too_many_sequences_are_told_when_enough_will_have_ended(door, monkeypatch):
    monkeypatch.setattr("lanewise.engine.scheduling.admission.time.monotonic", lambda: 100.0)
    accept(door, 10, 10)
    with pytest.raises(QueueFullError, match="10 sequences run or wait") as unknown:
        accept(door, 1, 1)
    assert unknown.value.retry_after_s == 60
    for second in range(100):  # one ends every second, and another one comes
        door.note_ended(0, 0, float(second))
        accept(door, 1, 0)
    with pytest.raises(QueueFullError) as full:
        accept(door, 5, 1)
    assert full.value.retry_after_s in (5, 6)
    door.note_ended(0, 0, 100.0)
    accept(door, 1, 0)
    assert door.unfinished == 10


def test_too_many_tokens_are_told_when_enough_will_have_started(door, monkeypatch):
    monkeypatch.setattr("lanewise.engine.scheduling.admission.time.monotonic", lambda: 100.0)
    accept(door, 1, 5000)  # alone it may be as long as it likes
    with pytest.raises(QueueFullError, match="prompts of 5000 tokens wait already"):
        accept(door, 1, 1)
    door.note_started(0, 5000, 0.0)
    for second in range(1, 100):
        accept(door, 1, 50)
        door.note_started(0, 50, float(second))
        door.note_ended(0, 0, float(second))
    accept(door, 1, 900)
    with pytest.raises(QueueFullError) as full:
        accept(door, 1, 400)
    assert 2 <= full.value.retry_after_s <= 7  # 300 tokens too many at 50 a second
    door.note_ended(0, 900, 100.0)
    accept(door, 1, 400)
    assert (door.unfinished, door.queued_tokens) == (2, 400)


def test_who_takes_all_keeps_no_other_client_out(door):
    accept(door, 10, 5000)
    for refused in ((2, 1), (1, 126)):  # an eighth of 10 sequences, of 1,000 tokens
        with pytest.raises(QueueFullError):
            accept(door, *refused, client=1)
    accept(door, 1, 125, client=1)
    accept(door, 1, 125, client=2)
    with pytest.raises(QueueFullError):
        accept(door, 1, 1, client=1)
    door.note_started(1, 125, 1.0)
    door.note_ended(1, 0, 2.0)
    accept(door, 1, 1, client=1)
    assert (door.unfinished, door.queued_tokens) == (12, 5126)


def test_closed_is_closed(door):
    door.close("because")
    with pytest.raises(EngineStoppedError, match="because"):
        accept(door, 1, 1)
