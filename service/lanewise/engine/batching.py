"""Turns a step into the arrays that the model reads and the draws that follow."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lanewise.engine.block_pool import BlockCopy
from lanewise.engine.sampling import Sampler
from lanewise.engine.sequence import Sequence
from lanewise.engine.step import Step, Turn
from lanewise.runtime import Adapter, Batch, Counters, Draw, Finished, Sampled


class ModelRunner(Protocol):
    """What the engine needs of a model: ``lanewise.runtime.Session`` has it, and so has a fake."""

    def step_and_draw(self, batch: Batch, draws: Items[Draw]) -> list[Sampled]:
        """Run the batch and draw one token from each of its rows of logits.

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


class HasSampler(Protocol):
    """Whoever draws the tokens of one sequence: the engine's ``Job``."""

    sampler: Sampler


def make_batch(
    step: Step,
    block_tables: NDArray[np.uint32],
    jobs: Mapping[Sequence, HasSampler],
    copies: Items[BlockCopy],
) -> tuple[Batch, list[Draw]]:
    """The ragged batch of a step, sequences in the step's order, and its draws.

    ``copies`` are the blocks that are copied before all else.
    """
    token_ids: list[int] = []
    query_start = [0]
    context_lens: list[int] = []
    table_rows: list[int] = []
    logit_rows: list[int] = []
    draws: list[Draw] = []
    adapters = group_by_adapter(step)
    for turn in step.turns:
        sequence = turn.sequence
        tokens, first, sampler = sequence.tokens, sequence.n_cached, jobs[sequence].sampler
        context_lens.append(first)
        table_rows.append(sequence.table_row)
        if turn.scored:
            logit_rows += [len(token_ids) + position - first for position in turn.scored]
            draws += [sampler.score(tokens[after + 1], after + 1) for after in turn.scored]
        if turn.count == 1:
            token_ids.append(tokens[first])
        else:
            token_ids += tokens[first : first + turn.count]
        if turn.draft:
            logit_rows += range(len(token_ids) - 1, len(token_ids) + len(turn.draft))
            token_ids += turn.draft
            draws += sampler.draws(tokens, turn.draft)
        elif turn.draws:
            logit_rows.append(len(token_ids) - 1)
            draws.append(sampler.draw(tokens, sequence.n_pending))
        query_start.append(len(token_ids))
    batch = Batch(
        token_ids=token_ids,
        query_start=query_start,
        context_lens=context_lens,
        block_tables=block_tables,
        logit_rows=logit_rows,
        table_rows=table_rows,
        adapters=adapters,
        copies=copies,
    )
    return batch, draws


def group_by_adapter(step: Step) -> list[Adapter | None] | None:
    """Put sequences with the same adapter side by side; the adapter of each, None without any.

    The library multiplies neighbours together.
    """
    if all(turn.sequence.request.adapter is None for turn in step.turns):
        return None
    step.turns.sort(key=_adapter_number)
    adapters = [turn.sequence.request.adapter for turn in step.turns]
    return [None if adapter is None else adapter.weights for adapter in adapters]


def _adapter_number(turn: Turn) -> int:
    adapter = turn.sequence.request.adapter
    return 0 if adapter is None else adapter.number


def results_of(step: Step, sampled: Items[Sampled]) -> list[Items[Sampled]]:
    """What each turn of a step got: scores of prompt tokens, then tokens of the answer, in order.

    Of the latter there are several when guesses came true.
    """
    results: list[Items[Sampled]] = []
    first = 0
    for turn in step.turns:
        end = first + len(turn.scored) + turn.draws + len(turn.draft)
        result = sampled[first:end]
        results.append(_that_hold(turn, result) if turn.draft else result)
        first = end
    return results


def _that_hold(turn: Turn, drawn: Items[Sampled]) -> Items[Sampled]:
    """The tokens drawn up to the first that is not as guessed, or that ends the answer."""
    stops = turn.sequence.request.params.stop_token_ids
    for count, (one, guessed) in enumerate(zip(drawn, turn.draft, strict=False), start=1):
        if one.token != guessed or one.token in stops:
            return drawn[:count]
    return drawn
