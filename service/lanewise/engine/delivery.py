"""Carries a step's outputs to the event loops of those who asked."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence as Items
from typing import NamedTuple

from lanewise.engine.stream import EngineError, RequestStream, TokenOutput
from lanewise.engine.tracking import Job
from lanewise.runtime import Sampled

logger = logging.getLogger(__name__)


class Parcel(NamedTuple):
    """What a step has for one sequence; what it becomes is made on the event loop.

    The engine's thread has other things to do between two steps, and here the model computes.
    """

    job: Job
    drawn: Items[Sampled | None]
    prompt_scores: Items[Sampled]
    finish_reason: str | None

    @property
    def stream(self) -> RequestStream:
        """Where it goes."""
        return self.job.group.stream

    def deliver(self) -> None:
        """Hand it over, on the event loop."""
        job, sequence = self.job, self.job.sequence
        outputs = [TokenOutput(job.index, one, None, sequence.n_reused) for one in self.drawn]
        if self.prompt_scores:
            outputs[0].prompt_scores = self.prompt_scores
        if self.finish_reason is not None:
            outputs[-1].finish_reason = self.finish_reason
            outputs[-1].ends_complete = sequence.is_complete and self.finish_reason == "stop"
        self.stream.deliver(outputs)


class Failure(NamedTuple):
    """The error that ends a request."""

    stream: RequestStream
    error: EngineError

    def deliver(self) -> None:
        """Hand it over, on the event loop."""
        self.stream.fail(self.error)


class Outbox:
    """What is to be delivered next; each event loop is woken once for all its requests."""

    def __init__(self) -> None:
        self._loops: defaultdict[asyncio.AbstractEventLoop, list[Parcel | Failure]]
        self._loops = defaultdict(list)

    def add(self, parcel: Parcel | Failure, loop: asyncio.AbstractEventLoop) -> None:
        """Put something behind what its request gets before."""
        self._loops[loop].append(parcel)

    def send(self) -> None:
        """Wake whoever gets something."""
        for loop, parcels in self._loops.items():
            try:
                loop.call_soon_threadsafe(_deliver, parcels)
            except RuntimeError:  # the loop was closed: nobody waits any more
                streams = {parcel.stream for parcel in parcels}
                logger.warning("%d requests lost their event loop", len(streams))
        self._loops.clear()


def _deliver(parcels: Items[Parcel | Failure]) -> None:
    for parcel in parcels:
        parcel.deliver()
