"""Carries a step's outputs to the event loops while the engine's thread goes on with the next.

Waking a loop gives up the interpreter, which the loop then keeps for as long as it works on the
outputs. Done by the engine's thread, that delays its next native call by 60 to 250 microseconds.
"""

import asyncio
import logging
import queue
import threading
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


Loops = defaultdict[asyncio.AbstractEventLoop, dict[RequestStream, Parcel]]


class Delivery:
    """One thread that wakes each event loop once for all that a step has for its requests."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Mapping[RequestStream, Parcel] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="lanewise-delivery", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def send(self, parcels: Mapping[RequestStream, Parcel]) -> None:
        """Deliver soon, in the order of the calls."""
        self._queue.put(parcels)

    def stop(self) -> None:
        """Deliver what is left, then end."""
        self._queue.put(None)

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _main(self) -> None:
        while (parcels := self._queue.get()) is not None:
            by_loop: Loops = defaultdict(dict)
            for stream, parcel in parcels.items():
                by_loop[stream.loop][stream] = parcel
            for loop, streams in by_loop.items():
                try:
                    loop.call_soon_threadsafe(_deliver, streams)
                except RuntimeError:  # the loop was closed: nobody waits any more
                    logger.warning("%d requests lost their event loop", len(streams))


def _deliver(streams: Mapping[RequestStream, Parcel]) -> None:
    for stream, parcel in streams.items():
        stream.deliver(parcel.outputs, parcel.error)
