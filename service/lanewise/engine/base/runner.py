"""The engine's view of a model."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from lanewise.runtime import Batch, Counters, Draw, Finished, Sampled


class ModelRunner(Protocol):
    """The engine's view of a model: ``lanewise.runtime.Session``, or a fake in tests."""

    def step_and_draw(self, batch: Batch, draws: Sequence[Draw]) -> list[Sampled]:
        """Run the batch and draw one token from each of its rows of logits.

        Single draws may fail (``Sampled.error``) without failing the step. StepRefusedError if
        nothing was done; after any other error the copies of blocks have been made.
        """

    def hold_draws(self) -> None:
        """Make the next step wait before its draws until ``release_draws`` is called."""

    def release_draws(self) -> None:
        """Undo one ``hold_draws``; any thread may call it."""

    def counters(self) -> Counters:
        """Counts of the work done so far."""

    def close(self) -> None:
        """Free everything."""


@runtime_checkable
class AheadRunner(Protocol):
    """A runner that also accepts a step before the previous one has ended."""

    def start(self, batch: Batch, draws: Sequence[Draw]) -> None:
        """Begin a step that may refer to draws of the step before, which may still run.

        After an error nothing was begun.
        """

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the oldest step begun; returns whether it has ended."""

    def finish(self) -> Finished:
        """The draws of the oldest step that was begun, once it has ended.

        Raises as ``step_and_draw``. A step after a failed one is not run.
        """


@runtime_checkable
class BlockRunner(Protocol):
    """A runner that copies blocks and states; any thread may have that done beside steps."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the KV cache."""

    @property
    def state_bytes(self) -> int:
        """Bytes of the state of one sequence; 0 where nothing keeps one."""

    def read_block(self, block: int, into: bytearray) -> None:
        """Copy a block of the KV cache, which no step writes meanwhile."""

    def write_block(self, block: int, data: bytearray) -> None:
        """Copy what was read once to a block, of which no step reads anything meanwhile."""

    def read_state(self, place: int, into: bytearray) -> None:
        """Copy the state in a place, which no step writes meanwhile, without its guesses."""

    def write_state(self, place: int, data: bytearray) -> None:
        """Copy what was read once to a place that no step uses meanwhile."""
