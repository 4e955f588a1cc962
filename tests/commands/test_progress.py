"""Where there is no terminal, a long command says a line now and then."""

import threading

from lanewise.commands import progress
from lanewise.commands.progress import Told, duration, line_of, steps_bar


def test_a_line_says_what_and_how_far(capfd):
    told = threading.Event()
    with Told("scoring", every_s=0.01) as bar:
        task = bar.add_task("a model", total=4)
        bar.advance(task, 2)
        while not told.is_set():
            if "lanewise: scoring a model, 50 %" in capfd.readouterr().err:
                told.set()
    assert told.is_set()


def test_a_step_that_takes_long_does_not_silence_it(capfd, monkeypatch):
    """The lines come from a thread: nothing has to move for them."""
    monkeypatch.setattr(progress, "EVERY_S", 10.0)
    with Told("fitting", every_s=0.01) as bar:
        bar.add_task("one matrix", total=1)
        seen = ""
        while seen.count("fitting one matrix, 0 %") < 3:
            seen += capfd.readouterr().err


def test_what_is_tracked_is_counted():
    with Told("scoring") as bar:
        done = [bar.tasks[0].completed for _ in bar.track(range(3), description="a model")]
    assert done == [0, 1, 2]


def test_the_time_that_is_left_follows_what_was_done():
    clock = [0.0]
    bar = steps_bar("scoring")
    bar.get_time = lambda: clock[0]
    task = bar.add_task("a model", total=10)
    for second in (1.0, 2.0, 3.0):
        clock[0] = second
        bar.advance(task)
    assert line_of(bar.tasks[0]) == "a model, 30 %, 7 s left"


def test_times_are_told_as_people_tell_them():
    assert [duration(s) for s in (0.4, 59.6, 75, 7322)] == [
        "0 s",
        "1 min 0 s",
        "1 min 15 s",
        "2 h 2 min",
    ]
