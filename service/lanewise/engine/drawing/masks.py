"""Fills the grammar masks of a step's draws, during the step where that pays, else before."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from lanewise.engine.base.runner import ModelRunner
from lanewise.engine.drawing.constraint import Constraint

# Processor time of one step's masks up to which handing them to another thread costs more than it
# saves (guide/decisions/masks-beside-the-step.md).
LIGHT_S = 0.0001


class MaskFiller:
    """Fills a step's masks before it, or during it if they are slow and a CPU is idle."""

    def __init__(self, runner: ModelRunner, has_spare_cpu: bool) -> None:
        self._runner = runner
        self._has_spare_cpu = has_spare_cpu
        self._last_s = 0.0  # processor time of the last step's masks
        self._filler = ThreadPoolExecutor(1, "lanewise-masks")
        self._filler.submit(lambda: None)  # start the thread now: later none may be had
        self._filling: Future[None] | None = None

    def begin(self, constraints: Sequence[Constraint]) -> None:
        """Fill the masks of the next step's draws, or begin to; ``end`` must follow."""
        if not constraints:
            return
        if self._last_s <= LIGHT_S or not self._has_spare_cpu:
            self._fill(constraints)
            return
        self._runner.hold_draws()
        self._filling = self._filler.submit(self._fill, constraints)
        # Queued after the masks: the filling thread itself releases the draws, so that the step
        # need not wait until another thread has the interpreter.
        self._filler.submit(self._runner.release_draws)

    def end(self) -> None:
        """Wait until the masks are filled; raises the error that filling them raised."""
        filling, self._filling = self._filling, None
        if filling is not None:
            filling.result()

    def close(self) -> None:
        """End the thread, which must be idle."""
        self._filler.shutdown()

    def _fill(self, constraints: Sequence[Constraint]) -> None:
        began = time.thread_time()
        for constraint in constraints:
            constraint.fill_mask()
        self._last_s = time.thread_time() - began
