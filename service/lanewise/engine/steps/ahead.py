"""Steps that run while the next one is planned.

Between two steps each sequence's new token is appended and sent, and the next batch is made. On
many cores, where a step takes a few milliseconds, that is a good part of the time, and more while
the event loop holds the interpreter. So the next step is begun before the current one ends. All of
its inputs are known but the tokens still being drawn, which the library fills in. Where such a
token ends an answer, its row of the next step is computed in vain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lanewise.engine.base.adapters import LoadedAdapter
from lanewise.engine.base.runner import AheadRunner
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.step import Copies, Step
from lanewise.engine.scheduling.pacing import Work
from lanewise.engine.steps.tracking import Job

# A step is planned this long before the running one should end, so that late requests are in it:
# LEAD_S seconds or LEAD_SHARE of the running step's time, whichever is longer.
LEAD_S, LEAD_SHARE = 0.010, 0.2


@dataclass(slots=True)
class StepInFlight:
    """A step that was begun."""

    runner: AheadRunner
    step: Step
    n_rows: int
    work: Work
    began: float  # the earliest time at which it can have begun
    expected_s: float  # predicted duration; 0 = unknown
    adapters: Sequence[LoadedAdapter]  # held until the step has run, even if requests are cancelled
    copies: Copies  # made by this step

    def let_go(self) -> None:
        """Release the adapters: the step has run or never will."""
        for adapter in self.adapters:
            adapter.release()

    def time_left(self, now: float) -> float:
        """Seconds until the next step should be planned."""
        lead_s = max(LEAD_S, LEAD_SHARE * self.expected_s)
        return self.began + self.expected_s - lead_s - now


def keep_adapters(step: Step) -> list[LoadedAdapter]:
    """Add a reference to each adapter of a step, so that none is freed before the step has run."""
    named = [turn.sequence.request.adapter for turn in step.turns]
    adapters = {one for one in named if one is not None}
    for adapter in adapters:
        adapter.keep()
    return list(adapters)


def can_run_ahead(step: Step, jobs: Mapping[Scheduled, Job]) -> bool:
    """Whether the step needs no more of the tokens still to be drawn than the library fills in.

    Grammars and scores of prompts need these tokens in Python, before the step begins.
    """
    for turn in step.turns:
        sequence = turn.sequence
        if turn.scored or sequence.n_most == sequence.n_prompt:
            return False
        if jobs[sequence].sampler.constraint is not None:
            return False
    return bool(step.turns)
