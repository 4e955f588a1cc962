"""What makes an engine say that nothing can be expected of its model."""

from lanewise.engine.metering.failures import MAX_FAILURES, FailureStreak
from lanewise.runtime import NativeError, StepRefusedError

BROKEN = NativeError("step: NaN or infinity", 6)


def test_failures_count_until_a_success(caplog):
    streak = FailureStreak()
    for _ in range(3):
        for _ in range(MAX_FAILURES - 1):
            streak.note_failure(BROKEN)
        assert streak.reason is None
        streak.note_success()
    assert not caplog.records
    for _ in range(MAX_FAILURES + 2):
        streak.note_failure(BROKEN)
    assert streak.reason == "the last 5 sequences failed: step: NaN or infinity"
    assert len(caplog.records) == 1
    streak.note_success()
    assert streak.reason is None
    assert "again" in caplog.messages[-1]


def test_what_a_request_asks_for_says_nothing_of_the_model():
    streak = FailureStreak()
    for _ in range(2 * MAX_FAILURES):
        streak.note_failure(StepRefusedError("x", 1))
    assert streak.reason is None
