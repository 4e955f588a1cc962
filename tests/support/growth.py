"""Tells work that grows with its size from work that grows with its square."""

import time
from collections.abc import Callable

ATTEMPTS = 10


def grows_no_faster(work: Callable[[], object], more: Callable[[], object], most: float) -> bool:
    """Whether ``more`` takes less than ``most`` times the processor time of ``work``.

    Each is what to call once prepared. On a busy machine any one measurement may be off: it is
    asked again, and what really grows faster is told no every time.
    """
    for _ in range(ATTEMPTS):
        little = min(_seconds(work) for _ in range(3))
        if _seconds(more) < most * little:
            return True
    return False


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start
