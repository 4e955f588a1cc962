"""What every engine has: a thread of its own, the door to it, and an inbox for what it is told."""

import logging
import queue
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from lanewise.engine.admission import Admission
from lanewise.engine.failures import FailureStreak
from lanewise.engine.metrics import Metrics
from lanewise.engine.stream import EngineStoppedError

logger = logging.getLogger(__name__)

# The engine's thread wants the interpreter back right after each native call, and a busy event loop
# keeps it for this long. Measured beside other work on two cores: the median wait after a call of
# 4 ms is 16 ms with the default of 5 ms, and 7 ms with this; less than this changes little.
SWITCH_INTERVAL_S = 0.0005


class EngineThread(ABC):
    """Starts, is asked and stops from any thread; what it is told to do, it does on its own."""

    def __init__(self, name: str, admission: Admission, metrics: Metrics) -> None:
        self.metrics = metrics
        self.failures = FailureStreak()
        self._admission = admission
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False  # the engine's thread only
        metrics.step_age.set_function(self.step_age_s)
        metrics.queued_tokens.set_function(lambda: admission.queued_tokens)
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        """Start the engine's thread."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._admission.open()
        self._thread.start()

    def stop_accepting(self) -> None:
        """Turn new requests away; those accepted go on."""
        self._admission.close()

    def stop(self) -> None:
        """Fail what is still running, free what the model runs with and end the thread."""
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
        """What was accepted and has not ended: sequences, or requests for vectors."""
        return self._admission.unfinished

    def step_age_s(self) -> float:
        """Seconds that the step running now has been running; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    @property
    @abstractmethod
    def _step_began(self) -> float | None:
        """When the step that runs now began; any thread asks."""

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
        """Fail what has not ended, and free what the model runs with."""

    def _drain_inbox(self) -> None:
        while not self._inbox.empty():
            self._inbox.get_nowait()()

    def _handle_stop(self) -> None:
        self._stopping = True
