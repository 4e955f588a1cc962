"""Threads for steps of few rows: as few as keep up with all, measured when a session is opened.

These steps wait for memory, which some of many cores exhaust. The other threads sleep meanwhile:
they would only wait at barriers, which take longer with them. No answer depends on it.
"""

import logging
import time
from collections.abc import Callable, Mapping

import numpy as np

from lanewise.runtime.session import BLOCK_TOKENS, Session
from lanewise.runtime.step_arrays import Batch

logger = logging.getLogger(__name__)

GROUP = 8  # threads that sleep or run together: LW_POOL_GROUP of the library
MAX_ROWS, CONTEXT = 4, 1024  # of steps that are few rows; more of either has work for all threads
WORTH = 1.02  # fewer threads may take so much longer
TURNS, BUDGET_S = 5, 1.0

Clock = Callable[[], float]


def counts(threads: int) -> list[int]:
    """All threads, and of these a half, a quarter and so on, in whole groups."""
    found = [threads]
    while (half := -(-found[-1] // (2 * GROUP)) * GROUP) < found[-1]:
        found.append(half)
    return found


def choose(seconds: Mapping[int, float]) -> int:
    """The fewest threads that keep up with the fastest number of them."""
    fastest = min(seconds.values())
    return min(count for count, took in seconds.items() if took <= WORTH * fastest)


def limit_threads(session: Session, threads: int, asked: int | None) -> int:
    """Let steps of few rows run on ``asked`` threads, or on as many as they need; returns these.

    Measuring writes into the session's cache: nothing may be in it yet.
    """
    if asked is None:
        asked = choose(measure(session, threads)) if len(counts(threads)) > 1 else threads
        if asked < threads:
            logger.info("steps of few rows run on %d of %d threads, as measured", asked, threads)
    asked = min(asked, threads)  # a setting that holds for several machines
    session.limit_threads(asked, MAX_ROWS, CONTEXT)
    return asked


def measure(session: Session, threads: int, clock: Clock = time.perf_counter) -> dict[int, float]:
    """The shortest time of a step of one row behind 1,024 tokens, for each number of threads.

    They take turns, so that other work on the machine slows all of them alike.
    """
    context = min(CONTEXT, (session.blocks - 1) * BLOCK_TOKENS, session.context_length - 1)
    table = np.arange(context // BLOCK_TOKENS + 1, dtype=np.uint32)
    tables = np.tile(table, (1, session.groups, 1))
    batch = Batch([1], [0, 1], [context], tables, [0])
    best = dict.fromkeys(counts(threads), float("inf"))
    begun = clock()
    for turn in range(1 + TURNS):
        for count in best:
            session.limit_threads(count, MAX_ROWS, CONTEXT)
            start = clock()
            session.step(batch)
            if turn > 0:  # the first one warms pages and caches
                best[count] = min(best[count], clock() - start)
        if turn > 0 and clock() - begun > BUDGET_S:
            break
    return best
