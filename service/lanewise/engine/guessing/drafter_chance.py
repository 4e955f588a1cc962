"""How often a drafter's guesses came true in all sequences, and whether it is asked at all."""

from dataclasses import dataclass

FIRST_CHANCE = 0.7  # rather too high: what is never tried is never measured
DRAFTER_RATE = 0.04  # at which what all sequences share is learned
FORGETTING_RATE = 1 / 400  # towards the first chance, each time a guess is not run
USELESS = 0.2  # a drafter whose guesses come true more rarely sleeps
USE_RATE = 1 / 64  # at which it is learned how many steps ask it
UNUSED = 0.02  # one that a smaller share of steps asks sleeps too
TRIALS = 8  # of so many sequences one is tried while the drafter sleeps


@dataclass(slots=True)
class DrafterChance:
    """What a new sequence begins with.

    A drafter sleeps if its guesses hardly ever come true, or are hardly ever worth their rows. Most
    sequences leave it alone then, and nothing is kept for it; it wakes by what the others find.
    """

    value: float = FIRST_CHANCE
    _came: float = FIRST_CHANCE  # how often guesses came true of late, without forgetting
    _used: float = 1.0  # share of the latest steps that asked it, where they could
    _n_passed: int = 0  # sequences that began while it slept

    @property
    def is_asleep(self) -> bool:
        """Whether its guesses were hardly ever of use of late."""
        return self._came < USELESS or self._used < UNUSED

    def is_to_be_tried(self) -> bool:
        """Whether a new sequence is to use it: each one, or one of many if it sleeps."""
        if not self.is_asleep:
            return True
        self._n_passed += 1
        return self._n_passed % TRIALS == 0

    def note_step(self) -> None:
        """Note a step for which it was kept, whether it was asked or not."""
        self._used -= USE_RATE * self._used

    def note_use(self) -> None:
        """Note that such a step asked it."""
        self._used += USE_RATE

    def learn(self, came: float) -> None:
        """Learn whether one came true."""
        self.value += DRAFTER_RATE * (came - self.value)
        self._came += DRAFTER_RATE * (came - self._came)

    def pass_over(self) -> None:
        """Note that one was not worth its row: in time it is tried again."""
        self.value += FORGETTING_RATE * (FIRST_CHANCE - self.value)
