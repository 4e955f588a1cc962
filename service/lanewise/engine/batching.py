"""Turns a step into the arrays that the model reads and the draws that follow."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lanewise.engine.sampling import Sampler
from lanewise.engine.scheduler import Step
from lanewise.engine.sequence import Sequence
from lanewise.runtime import Batch, Counters, Sampled, Sampling


class ModelRunner(Protocol):
    """What the engine needs of a model: ``lanewise.runtime.Session`` has it, and so has a fake."""

    def step(self, batch: Batch) -> NDArray[np.float32]:
        """Run the batch; rows of logits, valid until the next step."""

    def sample(self, logits: NDArray[np.float32], params: Items[Sampling]) -> list[Sampled]:
        """Draw one token from each row."""

    def counters(self) -> Counters:
        """Work done so far."""

    def close(self) -> None:
        """Free everything."""


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """What one step gave one sequence."""

    scores: list[Sampled]  # of prompt tokens, in order
    drawn: Sampled | None


def run_step(
    runner: ModelRunner, step: Step, sampler_of: Callable[[Sequence], Sampler]
) -> dict[Sequence, SequenceResult]:
    """Run the model over a step and draw what is due."""
    logits = runner.step(make_batch(step))
    draws: list[Sampling] = []
    for sequence, count in step.token_counts.items():
        sampler = sampler_of(sequence)
        tokens = sequence.tokens.view()
        draws += [sampler.score(int(tokens[p + 1]), p + 1) for p in sequence.scored_by(count)]
        if sequence.draws_after(count):
            draws.append(sampler.draw(tokens))
    sampled = iter(runner.sample(logits, draws) if draws else ())
    return {
        sequence: SequenceResult(
            scores=[next(sampled) for _ in sequence.scored_by(count)],
            drawn=next(sampled) if sequence.draws_after(count) else None,
        )
        for sequence, count in step.token_counts.items()
    }


def make_batch(step: Step) -> Batch:
    """The ragged batch of a step, sequences in the step's order."""
    counts = step.token_counts
    # Lists where the numbers are few: numpy costs more than what it saves.
    block_tables = np.zeros((len(counts), max(len(s.blocks) for s in counts)), dtype=np.uint32)
    query_start = [0]
    context_lens: list[int] = []
    token_ids: list[NDArray[np.uint32]] = []
    logit_rows: list[int] = []
    for row, (sequence, count) in enumerate(counts.items()):
        first, start = sequence.n_cached, query_start[-1]
        query_start.append(start + count)
        context_lens.append(first)
        token_ids.append(sequence.tokens.view()[first : first + count])
        block_tables[row, : len(sequence.blocks)] = sequence.blocks.view()
        logit_rows += [start + position - first for position in sequence.scored_by(count)]
        if sequence.draws_after(count):
            logit_rows.append(start + count - 1)
    return Batch(
        token_ids=np.concatenate(token_ids) if len(token_ids) > 1 else token_ids[0],
        query_start=query_start,
        context_lens=context_lens,
        block_tables=block_tables,
        logit_rows=logit_rows,
    )
