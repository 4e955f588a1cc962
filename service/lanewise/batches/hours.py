"""Hours of the day, by the clock of the machine, in which something may be done."""

from collections.abc import Iterable
from datetime import datetime

DAY = 24 * 60


class Hours:
    """Spans such as ``22:00-06:00``; none at all means any time."""

    def __init__(self, spans: Iterable[str] = ()) -> None:
        self._spans = [tuple(map(_minutes, span.split("-"))) for span in spans]

    def has(self, now: datetime) -> bool:
        """Whether a moment is in one of the spans; a span's end is not."""
        minute = now.hour * 60 + now.minute
        return not self._spans or any(
            first <= minute < end if first < end else not end <= minute < first
            for first, end in self._spans
        )


def _minutes(clock: str) -> int:
    hour, _, minute = clock.partition(":")
    return int(hour) * 60 + int(minute or 0)
