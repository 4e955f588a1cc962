"""Fills the masks of a step's draws: beside the step where that pays, otherwise before it."""

import queue
import threading
import time
from collections.abc import Sequence as Items

from lanewise.engine.batching import ModelRunner
from lanewise.engine.constraint import Constraint

# Processor time of one step's masks up to which handing them to another thread costs more than it
# saves (service/lanewise/DECISIONS.md).
LIGHT_S = 0.0001


class MaskFiller:
    """Fills the masks of each step, before it unless they are heavy and a CPU is free for them."""

    def __init__(self, runner: ModelRunner, has_spare_cpu: bool) -> None:
        self._runner = runner
        self._has_spare_cpu = has_spare_cpu
        self._last_s = 0.0  # processor time that the masks of the step before took
        self._todo: queue.SimpleQueue[Items[Constraint] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._is_beside = False
        self._thread = threading.Thread(target=self._main, name="lanewise-masks", daemon=True)

    def begin(self, constraints: Items[Constraint]) -> None:
        """Fill the masks of the next step's draws, or begin to; ``end`` must follow."""
        if not constraints:
            return
        if self._last_s <= LIGHT_S or not self._has_spare_cpu:
            self._fill(constraints)
            return
        if not self._thread.is_alive():
            self._thread.start()
        self._runner.hold_draws()
        self._is_beside = True
        self._todo.put(constraints)

    def end(self) -> None:
        """Wait for masks that are still being filled; raises what went wrong with them."""
        if self._is_beside:
            self._is_beside = False
            error = self._done.get()
            if error is not None:
                raise error

    def close(self) -> None:
        """End the thread; nothing is being filled."""
        if self._thread.is_alive():
            self._todo.put(None)
            self._thread.join()

    def _main(self) -> None:
        while (constraints := self._todo.get()) is not None:
            error: BaseException | None = None
            try:
                self._fill(constraints)
            except BaseException as caught:
                error = caught
            # In this order, the step's thread never waits for this one to get the interpreter back.
            self._done.put(error)
            self._runner.release_draws()

    def _fill(self, constraints: Items[Constraint]) -> None:
        began = time.thread_time()
        for constraint in constraints:
            constraint.fill_mask()
        self._last_s = time.thread_time() - began
