"""A drafter whose guesses never come true is left alone by most sequences, until some do."""

from lanewise.engine.guessing.drafter_chance import TRIALS, DrafterChance


def test_a_drafter_that_is_always_wrong_sleeps_and_wakes_when_it_is_right():
    chance = DrafterChance()
    for _ in range(10):
        chance.learn(0.0)
    assert chance.is_to_be_tried()
    for _ in range(30):
        chance.learn(0.0)
    assert chance.is_asleep
    for _ in range(1000):  # steps without guesses wake nobody
        chance.pass_over()
    assert chance.is_asleep
    tried = [chance.is_to_be_tried() for _ in range(3 * TRIALS)]
    assert sum(tried) == 3
    for _ in range(5):
        chance.learn(1.0)
    assert not chance.is_asleep
    assert chance.is_to_be_tried()


def test_a_drafter_that_is_never_worth_asking_sleeps_and_wakes_when_it_is_asked():
    chance = DrafterChance()
    for step in range(640):
        chance.note_step()
        if step % 16 == 0:
            chance.note_use()
    assert not chance.is_asleep
    for _ in range(100):
        chance.note_step()
    assert chance.is_asleep
    chance.note_use()
    chance.note_use()
    assert not chance.is_asleep
