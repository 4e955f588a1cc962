"""Carries a step's outputs to the event loops of the requests."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from lanewise.engine.base.stream import TokenOutput
from lanewise.engine.steps.tracking import Job
from lanewise.runtime import Sampled

logger = logging.getLogger(__name__)

Callback = Callable[..., None]
Call = tuple[Callback, tuple[Any, ...]]


def give_outputs(
    job: Job, drawn: Sequence[Sampled | None], prompt_scores: Sequence[Sampled], reason: str | None
) -> None:
    """Give one sequence its outputs of a step; runs on the event loop.

    The outputs are made here, while the model computes, to keep the engine's thread free between
    two steps.
    """
    sequence = job.sequence
    outputs = [TokenOutput(job.index, one, None, sequence.n_reused) for one in drawn]
    if prompt_scores:
        outputs[0].prompt_scores = prompt_scores
    if reason is not None:
        outputs[-1].finish_reason = reason
        outputs[-1].ends_complete = sequence.is_complete and reason == "stop"
    job.group.stream.deliver(outputs)


class Outbox:
    """Callbacks to run on event loops; each loop is woken once for all of its requests."""

    def __init__(self) -> None:
        self._loops: defaultdict[asyncio.AbstractEventLoop, list[Call]] = defaultdict(list)

    def add(self, loop: asyncio.AbstractEventLoop, callback: Callback, *arguments: Any) -> None:
        """Queue ``callback(*arguments)`` for an event loop, after earlier ones."""
        self._loops[loop].append((callback, arguments))

    def send(self) -> None:
        """Wake each event loop that has queued callbacks."""
        for loop, calls in self._loops.items():
            try:
                loop.call_soon_threadsafe(_make, calls)
            except RuntimeError:  # the loop is closed, so no reader waits
                logger.warning("%d outputs lost their event loop", len(calls))
        self._loops.clear()


def _make(calls: Sequence[Call]) -> None:
    for callback, arguments in calls:
        callback(*arguments)
