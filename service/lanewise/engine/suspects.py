"""Sequences that may have failed a step which took the states of all its sequences with it."""

from collections.abc import Iterable

from lanewise.engine.sequence import Sequence
from lanewise.engine.step import Turn


class Suspects:
    """Sequences of a step that failed, until each has run its tokens of that step alone.

    What came before those went well once and is computed again beside others.
    """

    def __init__(self) -> None:
        self._spans: dict[Sequence, tuple[int, int]] = {}  # positions that are run alone

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, turns: Iterable[Turn]) -> None:
        """These failed together, and are as far as they were before."""
        for turn in turns:
            first = turn.sequence.n_cached
            end = first + turn.count
            if (known := self._spans.get(turn.sequence)) is not None:
                first, end = min(first, known[0]), max(end, known[1])
            self._spans[turn.sequence] = first, end

    def cut(self, sequence: Sequence, count: int) -> int:
        """How many of its next ``count`` tokens a sequence may run beside others; perhaps none."""
        span = self._spans.get(sequence)
        return count if span is None else max(0, min(count, span[0] - sequence.n_cached))

    def next_alone(self, running: Iterable[Sequence]) -> Sequence | None:
        """The sequence that is to run by itself now; None if there is none."""
        for sequence in running:
            span = self._spans.get(sequence)
            if span is not None and sequence.n_cached >= span[0]:
                return sequence
        return None

    def note_computed(self, sequence: Sequence, end: int) -> None:
        """A sequence was computed up to ``end``."""
        span = self._spans.get(sequence)
        if span is not None and end >= span[1]:
            del self._spans[sequence]

    def leave(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        self._spans.pop(sequence, None)
