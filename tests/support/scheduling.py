"""Sequences, schedulers and steps of an imaginary model."""

import itertools
from collections.abc import Iterable

from lanewise.engine.base.block_pool import BlockPool
from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.sequence import Scheduled, State
from lanewise.engine.base.step import Step
from lanewise.engine.scheduling.scheduler import Scheduler
from lanewise.runtime import Sampled

MAX_MODEL_LEN = 4096
unlike = itertools.count(1)


def sequence(
    n_prompt: int,
    max_tokens: int = 100,
    scoring: int = 0,
    text: int | None = None,
    **request: int,
) -> Scheduled:
    """Its prompt is the beginning of a text; without ``text``, of one that no other has.

    With ``scoring`` its tokens are scored from that one on, if it has so many.
    """
    params = SamplingParams(
        seed=0,
        max_tokens=max_tokens,
        prompt_logprobs=0 if scoring else None,
        score_from=max(1, min(scoring, n_prompt)),
    )
    first = 1000 * (next(unlike) if text is None else -text) % 2**32
    return Scheduled(GenerationRequest(list(range(first, first + n_prompt)), params, **request))


def scheduler(
    n_blocks: int = 100,
    max_seqs: int = 4,
    max_step_tokens: int = 16,
    max_step_logits: int = 16,
    windows: tuple[int | None, ...] = (None,),
) -> Scheduler:
    config = SchedulerConfig(
        max_seqs, max_step_tokens, max_step_logits, MAX_MODEL_LEN, windows=windows
    )
    return Scheduler(config, BlockPool(n_blocks))


def run(scheduler: Scheduler) -> list[int]:
    """One step with an imaginary model; returns the numbers of tokens in the step's order."""
    step = scheduler.schedule()
    complete(scheduler, step)
    return [turn.count for turn in step.turns]


def run_to_end(scheduler: Scheduler, one: Scheduled) -> None:
    """All steps until a sequence, added here, has ended."""
    scheduler.add(one)
    while one.state is not State.FINISHED:
        run(scheduler)


def counts(step: Step) -> dict[Scheduled, int]:
    return {turn.sequence: turn.count for turn in step.turns}


def complete(scheduler: Scheduler, step: Step, accepted: Iterable[int] = ()) -> list[Scheduled]:
    """The sequences that end with this step; of drafts, so many tokens come true."""
    drawing = {turn.sequence for turn in step.turns if turn.ends_in_draw}
    numbers = iter(accepted)
    results = []
    for turn in step.turns:
        scores = list(turn.scored)
        guessed = turn.draft[: next(numbers, 0)] if turn.draft else ()
        drawn = [*guessed, turn.sequence.request.choice] if turn.ends_in_draw else []
        results.append([Sampled(token, 0.0) for token in scores + drawn])
    scheduler.record(step, results)
    ran = [turn.sequence for turn in step.turns]
    ended = [s for s in ran if s.uncached_len == 0 or (s in drawing and not s.draws_more)]
    for one in ended:
        scheduler.finish(one)
    return ended


def step_that_preempts(scheduler: Scheduler) -> Step:
    """The first step, of those to come, that takes blocks from a sequence; not run yet."""
    step = scheduler.schedule()
    while not step.preempted:
        complete(scheduler, step)
        step = scheduler.schedule()
    return step
