"""Draws the tokens of a finished answer again, at the speed of a prompt.

All tokens are known, so the model runs over many of them at once. Each is drawn from its logits as
its request asked. With a grammar a token may be forced instead: then the grammar must force it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, Protocol

from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.drawing.constraint import Constraint, ConstraintError
from lanewise.engine.drawing.sampling import Sampler
from lanewise.engine.steps.tracking import Job
from lanewise.runtime import BLOCK_TOKENS, Adapter, Batch, Draw, Sampled, raise_failed


class Runner(Protocol):
    """What runs the model; a ``Session``."""

    def step_and_draw(self, batch: Batch, draws: Sequence[Draw]) -> list[Sampled]:
        """Run the model over ``batch`` and draw a token from each of its rows of logits."""


class Difference(NamedTuple):
    """The first token of an answer that is not the one that is drawn there."""

    place: int  # in the answer
    token: int  # in the answer
    drawn: int | None  # None: the answer was already over, or its grammar allowed nothing


class _Expected(NamedTuple):
    """A token that the answer has, and how it came."""

    token: int
    draw: Draw | None  # None: the grammar forced it


def first_difference(
    runner: Runner,
    job: Job,
    answer: Sequence[int],
    *,
    max_tokens: int,
    max_draws: int,
    adapter: Adapter | None = None,
    progress: Callable[[int], None] = lambda n_run: None,
) -> Difference | None:
    """Where an answer is not what is drawn for a request; None: nowhere.

    ``job`` is of the request, new. The runner has blocks for prompt and answer. A step runs at most
    ``max_tokens`` tokens and at most ``max_draws`` draws; ``progress`` hears of tokens run.
    """
    prompt = list(job.sequence.request.prompt)
    texts = prompt + list(answer)
    n_blocks = -(-len(texts) // BLOCK_TOKENS)
    table = [list(range(n_blocks))]

    def run(first: int, end: int, rows: Sequence[int], draws: Sequence[Draw]) -> list[Sampled]:
        batch = Batch(
            token_ids=texts[first:end],
            query_start=[0, end - first],
            context_lens=[first],
            block_tables=table,
            logit_rows=rows,
            adapters=None if adapter is None else [adapter],
        )
        sampled = runner.step_and_draw(batch, draws)
        progress(end)
        return sampled

    n_read = len(prompt) - 1
    for first in range(0, n_read, max_tokens):
        run(first, min(first + max_tokens, n_read), (), ())
    expected = _expected(job, list(answer))
    place, over = 0, None
    while place < len(answer) and over is None:
        group: list[_Expected] = []
        try:
            # What came before an error is kept.
            group.extend(islice(expected, min(max_tokens, max_draws)))
        except _OverError as error:
            over = error.difference
        if not group:
            break
        first = n_read + place
        rows = [i for i, one in enumerate(group) if one.draw is not None]
        draws = [one.draw for one in group if one.draw is not None]
        sampled = run(first, first + len(group), rows, draws)
        raise_failed(sampled)
        for row, one in zip(rows, sampled, strict=True):
            if one.token != group[row].token:
                return Difference(place + row, group[row].token, one.token)
        place += len(group)
    return over


class _OverError(Exception):
    """The answer goes on where it cannot."""

    def __init__(self, difference: Difference) -> None:
        super().__init__()
        self.difference = difference


def _expected(job: Job, answer: Sequence[int]) -> Iterator[_Expected]:
    """How each token of an answer comes; raises ``_OverError`` where none can."""
    if job.sampler.constraint is None:
        yield from _unconstrained(job.sequence, job.sampler, answer)
    else:
        yield from _constrained(job.sequence, job.sampler, job.sampler.constraint, answer)


def _unconstrained(
    sequence: Scheduled, sampler: Sampler, answer: Sequence[int]
) -> Iterator[_Expected]:
    for place, token in enumerate(answer):
        if place and answer[place - 1] in sequence.stop_ids:
            raise _OverError(Difference(place, token, None))
        yield _Expected(token, sampler.draw(sequence.tokens))
        sequence.tokens.append(token)


def _constrained(
    sequence: Scheduled, sampler: Sampler, constraint: Constraint, answer: Sequence[int]
) -> Iterator[_Expected]:
    n_prompt, grammar = len(sequence.request.prompt), sequence.request.grammar
    assert grammar is not None
    place = 0

    def forced() -> Iterator[_Expected]:
        """The tokens that the sequence has got from its grammar."""
        nonlocal place
        for token in sequence.tokens[n_prompt + place : n_prompt + len(answer)]:
            if token != answer[place]:
                raise _OverError(Difference(place, answer[place], token))
            yield _Expected(token, None)
            place += 1

    yield from forced()
    reason = None
    while place < len(answer):
        if reason is not None or sequence.is_complete:
            raise _OverError(Difference(place, answer[place], None))
        grammar.debt_s = 0.0  # here it may take its time
        constraint.fill_mask()
        draw = sampler.draw(sequence.tokens)
        mask = constraint.mask.copy()  # the next one is written to the same place
        yield _Expected(answer[place], draw._replace(sampling=replace(draw.sampling, mask=mask)))
        sequence.tokens.append(answer[place])
        drawn = Sampled(answer[place], 0.0)
        place += 1
        try:
            _, _, reason = constraint.complete(sequence, drawn)
        except ConstraintError:
            raise _OverError(Difference(place - 1, drawn.token, None)) from None
        yield from forced()
