"""What all engines share: their own thread, admission, and an inbox of messages."""

import logging
import queue
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from lanewise.engine.base.stream import EngineStoppedError
from lanewise.engine.metering.failures import FailureStreak
from lanewise.engine.metering.metrics import Metrics
from lanewise.engine.scheduling.admission import Admission

logger = logging.getLogger(__name__)

# After a native call the engine's thread needs the interpreter (GIL), which a busy event loop keeps
# for this long. Measured beside other work on two cores: after a call of 4 ms the thread waits 16
# ms (median) with Python's default of 5 ms, and 7 ms with this value. Less changes little.
SWITCH_INTERVAL_S = 0.0005


class EngineThread(ABC):
    """Can be started, asked and stopped from any thread; runs messages and steps on its own."""

    def __init__(self, name: str, admission: Admission, metrics: Metrics) -> None:
        self.metrics = metrics
        self.failures = FailureStreak()
        self._admission = admission
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False  # used only by the engine's thread
        metrics.step_age.set_function(self.step_age_s)
        metrics.queued_tokens.set_function(lambda: admission.queued_tokens)
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        """Start the engine's thread."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._admission.open()
        self._thread.start()

    def stop_accepting(self) -> None:
        """Refuse new requests; accepted ones go on."""
        self._admission.close()

    def stop(self) -> None:
        """Fail unfinished requests, free the model's memory and end the thread."""
        self.stop_accepting()
        if self._thread.is_alive():
            self._inbox.put(self._handle_stop)
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._thread.is_alive()

    @property
    def unfinished(self) -> int:
        """Sequences, or requests for vectors, that were accepted and have not ended."""
        return self._admission.unfinished

    def step_age_s(self) -> float:
        """Seconds since the running step began; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    @property
    @abstractmethod
    def _step_began(self) -> float | None:
        """When the running step began; called from any thread."""

    # Everything below runs on the engine's thread.

    def _main(self) -> None:
        try:
            self._work()
        except Exception:
            logger.exception("the engine has a fault and stops")
            self._admission.close("the engine has stopped after a fault")
        finally:
            self.stop_accepting()
            self._drain_inbox()
            self._wind_up(EngineStoppedError(self._admission.why_closed))

    @abstractmethod
    def _work(self) -> None:
        """Run steps until told to stop."""

    @abstractmethod
    def _wind_up(self, error: EngineStoppedError) -> None:
        """Fail unfinished requests and free the model's memory."""

    def _drain_inbox(self) -> None:
        while not self._inbox.empty():
            self._inbox.get_nowait()()

    def _handle_stop(self) -> None:
        self._stopping = True
