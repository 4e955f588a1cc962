"""Finds the sequence at fault after a failed step that spoiled the states of all its sequences."""

from collections.abc import Iterable

from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.step import Turn


class Suspects:
    """Sequences of a failed step, until each has run its tokens of that step alone.

    Their earlier tokens ran without error once and are computed again beside other sequences.
    """

    def __init__(self) -> None:
        self._spans: dict[Scheduled, tuple[int, int]] = {}  # positions that run alone

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, turns: Iterable[Turn]) -> None:
        """Suspect the sequences of a failed step; they are as far as before it."""
        for turn in turns:
            first = turn.sequence.n_cached
            end = first + turn.count
            if (known := self._spans.get(turn.sequence)) is not None:
                first, end = min(first, known[0]), max(end, known[1])
            self._spans[turn.sequence] = first, end

    def cut(self, sequence: Scheduled, count: int) -> int:
        """How many of its next ``count`` tokens a sequence may run beside others; may be 0."""
        span = self._spans.get(sequence)
        return count if span is None else max(0, min(count, span[0] - sequence.n_cached))

    def next_alone(self, running: Iterable[Scheduled]) -> Scheduled | None:
        """The sequence that must run alone now, or None."""
        for sequence in running:
            span = self._spans.get(sequence)
            if span is not None and sequence.n_cached >= span[0]:
                return sequence
        return None

    def note_computed(self, sequence: Scheduled, end: int) -> None:
        """Note that a sequence is computed up to ``end``."""
        span = self._spans.get(sequence)
        if span is not None and end >= span[1]:
            del self._spans[sequence]

    def leave(self, sequence: Scheduled) -> None:
        """Forget a sequence that has ended."""
        self._spans.pop(sequence, None)
