"""Carries a step's outputs to the event loops of those who asked."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any

from lanewise.engine.stream import TokenOutput
from lanewise.engine.tracking import Job
from lanewise.runtime import Sampled

logger = logging.getLogger(__name__)

# Writing to so many sockets takes 0.2 ms, for which the interpreter cannot be had.
AT_ONCE = 8

Callback = Callable[..., None]


def deliver(
    job: Job, drawn: Items[Sampled | None], prompt_scores: Items[Sampled], reason: str | None
) -> None:
    """Hand over what a step has for one sequence, on the event loop.

    The outputs are made here: the engine's thread has other things to do between two steps, and
    here the model computes.
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
    """What is to be delivered next; each event loop is woken once for all its requests.

    An event loop that is still delivering when the model has finished its step holds the
    interpreter for as long as it writes to sockets, which uvloop does for everything at once. So it
    takes few parcels in a row, and none while the engine's thread has work to do.
    """

    def __init__(self) -> None:
        self._bags: dict[asyncio.AbstractEventLoop, _Bag] = {}
        self._is_open = _Flag()

    def add(self, loop: asyncio.AbstractEventLoop, callback: Callback, *arguments: Any) -> None:
        """Have ``callback(*arguments)`` called on an event loop, behind what was added before."""
        bag = self._bags.get(loop)
        if bag is None:
            bag = self._bags[loop] = _Bag(loop, self._is_open)
        bag.parcels.append((callback, arguments))

    def send(self) -> None:
        """Wake whoever gets something; the engine's thread goes on outside the interpreter."""
        self._is_open.value = True
        for loop, bag in list(self._bags.items()):
            if not bag.parcels:
                del self._bags[loop]
                continue
            try:
                loop.call_soon_threadsafe(bag.resume)
            except RuntimeError:  # the loop was closed: nobody waits any more
                logger.warning("%d outputs lost their event loop", len(bag.parcels))
                del self._bags[loop]

    def pause(self) -> None:
        """Let event loops wait with what they have not delivered until the next ``send``."""
        self._is_open.value = False


class _Flag:
    """A truth that two threads see."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = True


class _Bag:
    """What is on its way to one event loop: the engine's thread fills it, the loop empties it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, is_open: _Flag) -> None:
        self.parcels: deque[tuple[Callback, tuple[Any, ...]]] = deque()
        self._loop = loop
        self._is_open = is_open
        self._is_delivering = False

    def resume(self) -> None:
        """Deliver, unless that is going on."""
        if not self._is_delivering:
            self._deliver_some()

    def _deliver_some(self) -> None:
        self._is_delivering = False
        if not self._is_open.value:
            return  # the next ``send`` resumes
        parcels = self.parcels
        for _ in range(min(AT_ONCE, len(parcels))):
            callback, arguments = parcels.popleft()
            callback(*arguments)
        if parcels:
            self._is_delivering = True
            self._loop.call_soon(self._deliver_some)
