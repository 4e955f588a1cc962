"""What the engine needs of a model that runs."""

from collections.abc import Sequence as Items
from typing import Protocol, runtime_checkable

from lanewise.runtime import Batch, Counters, Draw, Finished, Sampled


class ModelRunner(Protocol):
    """What the engine needs of a model: ``lanewise.runtime.Session`` has it, and so has a fake."""

    def step_and_draw(self, batch: Batch, draws: Items[Draw]) -> list[Sampled]:
        """Run the batch and draw one token from each of its rows of logits.

        Of those some may have failed (``Sampled``), which is no error of the step.
        StepRefusedError if nothing was done; after any other error its blocks have been copied.
        """

    def hold_draws(self) -> None:
        """Let the next step wait before its draws until they are released."""

    def release_draws(self) -> None:
        """Take one hold back, from any thread."""

    def counters(self) -> Counters:
        """Work done so far."""

    def close(self) -> None:
        """Free everything."""


@runtime_checkable
class AheadRunner(Protocol):
    """A runner that also takes a step before the one before it has ended."""

    def start(self, batch: Batch, draws: Items[Draw]) -> None:
        """Begin a step that may refer to draws of the one begun before, which may still run.

        After an error nothing was begun.
        """

    def wait(self, seconds: float) -> bool:
        """Wait for the first step begun, but not longer; returns whether it has been run."""

    def finish(self) -> Finished:
        """What the first step begun has drawn, once it has been run.

        Errors are those of ``step_and_draw``: behind a step that failed, nothing is done.
        """
