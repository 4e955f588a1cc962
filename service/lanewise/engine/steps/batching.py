"""Turns a step into the arrays that the model reads, and the draws that follow."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lanewise.engine.base.picture import NO_RULES, PictureRules
from lanewise.engine.base.sequence import Rows, Scheduled
from lanewise.engine.base.step import Copies, Step, Turn
from lanewise.engine.steps.picture_arrays import positions_of, sees_of
from lanewise.engine.steps.tracking import Job
from lanewise.runtime import Adapter, Batch, Draw, Sampled


def make_batch(
    step: Step,
    block_tables: NDArray[np.uint32],
    jobs: Mapping[Scheduled, Job],
    copies: Copies,
    pictures: PictureRules = NO_RULES,
    skips_head: bool = False,
) -> tuple[Batch, list[Draw]]:
    """The ragged batch of a step, sequences in the step's order, and its draws.

    ``copies`` of blocks and states are made before the batch runs. With ``skips_head`` nothing is
    kept for a head, of which no guesses follow.
    """
    token_ids: list[int] = []
    query_start = [0]
    context_lens: list[int] = []
    table_rows: list[int] = []
    logit_rows: list[int] = []
    draws: list[Draw] = []
    guesses: list[int] = []
    accepted: list[int] = []
    rows: list[tuple[int, Rows]] = []
    for turn in step.turns:
        sequence = turn.sequence
        guesses.append(len(turn.draft))
        accepted.append(sequence.n_accepted)
        tokens, first, sampler = sequence.tokens, sequence.n_cached, jobs[sequence].sampler
        context_lens.append(first)
        table_rows.append(sequence.table_row)
        if turn.scored:
            logit_rows += [len(token_ids) + position - first for position in turn.scored]
            draws += [sampler.score(tokens[after + 1], after + 1) for after in turn.scored]
        if sequence.rows:
            before = len(token_ids) - first
            seen = sequence.rows_of(first, first + turn.count)
            rows += [(before + place, array) for place, array in seen]
        if turn.count == 1:
            token_ids.append(tokens[first])
        else:
            token_ids += tokens[first : first + turn.count]
        if turn.draft:
            logit_rows += range(len(token_ids) - 1, len(token_ids) + len(turn.draft))
            token_ids += turn.draft
            draws += sampler.draws_with_draft(tokens, turn.draft)
        elif turn.ends_in_draw:
            logit_rows.append(len(token_ids) - 1)
            draws.append(sampler.draw(tokens, sequence.n_pending))
        query_start.append(len(token_ids))
    if pictures.token is not None:
        for place, array in rows:
            token_ids[place : place + len(array)] = [pictures.token] * len(array)
    batch = Batch(
        token_ids=token_ids,
        query_start=query_start,
        context_lens=context_lens,
        block_tables=block_tables,
        logit_rows=logit_rows,
        table_rows=table_rows,
        adapters=_adapters_of(step),
        block_copies=copies.blocks,
        rows=rows,
        positions=positions_of(step) if pictures.n_axes > 1 else None,
        sees=sees_of(step) if pictures.see_ahead else None,
        state_copies=copies.states,
        guesses=guesses if any(guesses) else None,
        accepted=accepted if any(accepted) else None,
        skips_head=skips_head,
    )
    return batch, draws


def _adapters_of(step: Step) -> list[Adapter | None] | None:
    """The adapter of each sequence; None if no sequence has one."""
    adapters = [turn.sequence.request.adapter for turn in step.turns]
    if not any(adapters):
        return None
    return [None if adapter is None else adapter.weights for adapter in adapters]


def results_of(step: Step, sampled: Sequence[Sampled]) -> list[Sequence[Sampled]]:
    """The results of each turn: scores of prompt tokens, then tokens of the answer, in order.

    A turn has several answer tokens when guesses came true. If a draw failed, the turn's results
    end before it and ``turn.error`` is set.
    """
    results: list[Sequence[Sampled]] = []
    first = 0
    for turn in step.turns:
        end = first + len(turn.scored) + turn.ends_in_draw + len(turn.draft)
        result = sampled[first:end]
        if turn.draft:
            result = _that_hold(turn, result)
        for place, one in enumerate(result):
            if one.error is not None:
                turn.error, result = one.error, result[:place]
                break
        results.append(result)
        first = end
    return results


def _that_hold(turn: Turn, drawn: Sequence[Sampled]) -> Sequence[Sampled]:
    """The tokens drawn, up to the first that failed, differs from the guess or ends the answer."""
    stops = turn.sequence.request.params.stop_token_ids
    for count, (one, guessed) in enumerate(zip(drawn, turn.draft, strict=False), start=1):
        if one.error is not None or one.token != guessed or one.token in stops:
            return drawn[:count]
    return drawn
