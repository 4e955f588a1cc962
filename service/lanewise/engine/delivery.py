"""Carries a step's outputs to the event loops of those who asked."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from lanewise.engine.stream import EngineError, RequestStream, TokenOutput

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Parcel:
    """What one step has for one request."""

    outputs: list[TokenOutput] = field(default_factory=list)
    error: EngineError | None = None


Loops = defaultdict[asyncio.AbstractEventLoop, defaultdict[RequestStream, Parcel]]


class Outbox:
    """What is to be delivered next; each event loop is woken once for all its requests."""

    def __init__(self) -> None:
        self._loops: Loops = defaultdict(lambda: defaultdict(Parcel))

    def parcel(self, stream: RequestStream) -> Parcel:
        """The parcel that a request gets next."""
        return self._loops[stream.loop][stream]

    def send(self) -> None:
        """Wake whoever gets something."""
        for loop, parcels in self._loops.items():
            try:
                loop.call_soon_threadsafe(_deliver, parcels)
            except RuntimeError:  # the loop was closed: nobody waits any more
                logger.warning("%d requests lost their event loop", len(parcels))
        self._loops.clear()


def _deliver(parcels: Mapping[RequestStream, Parcel]) -> None:
    for stream, parcel in parcels.items():
        stream.deliver(parcel.outputs, parcel.error)
