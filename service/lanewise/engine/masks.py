"""Fills the masks of a step's draws: beside the step where that pays, otherwise before it."""

import time
from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor

from lanewise.engine.constraint import Constraint
from lanewise.engine.runner import ModelRunner

# Processor time of one step's masks up to which handing them to another thread costs more than it
# saves (service/lanewise/text/DECISIONS.md).
LIGHT_S = 0.0001


class MaskFiller:
    """Fills the masks of each step, before it unless they are heavy and a CPU is free for them."""

    def __init__(self, runner: ModelRunner, has_spare_cpu: bool) -> None:
        self._runner = runner
        self._has_spare_cpu = has_spare_cpu
        self._last_s = 0.0  # processor time that the masks of the step before took
        self._filler = ThreadPoolExecutor(1, "lanewise-masks")
        self._filler.submit(lambda: None)  # its thread: later the system may refuse one
        self._filling: Future[None] | None = None

    def begin(self, constraints: Items[Constraint]) -> None:
        """Fill the masks of the next step's draws, or begin to; ``end`` must follow."""
        if not constraints:
            return
        if self._last_s <= LIGHT_S or not self._has_spare_cpu:
            self._fill(constraints)
            return
        self._runner.hold_draws()
        self._filling = self._filler.submit(self._fill, constraints)
        # Behind it, so that it is done when draws are released: the step's thread never waits for
        # the filling one to get the interpreter back.
        self._filler.submit(self._runner.release_draws)

    def end(self) -> None:
        """Wait for masks that are still being filled; raises what went wrong with them."""
        filling, self._filling = self._filling, None
        if filling is not None:
            filling.result()

    def close(self) -> None:
        """End the thread; nothing is being filled."""
        self._filler.shutdown()

    def _fill(self, constraints: Items[Constraint]) -> None:
        began = time.thread_time()
        for constraint in constraints:
            constraint.fill_mask()
        self._last_s = time.thread_time() - began
