"""Steps that run while the next one is planned.

Between two steps there is work for every sequence: its token is put behind its text and sent, and
the next batch is made. On many cores, where a step takes a few milliseconds, that would be a good
part of the time, and more whenever the event loop has the interpreter just then. So the next step
is begun before the one before it has ended: all about it is known but the tokens drawn last, which
the library puts in itself. Where they end an answer, its row of the next step is computed in vain.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

from lanewise.engine.adapters import LoadedAdapter
from lanewise.engine.pacing import Work
from lanewise.engine.runner import AheadRunner
from lanewise.engine.sequence import Sequence
from lanewise.engine.step import Copies, Step
from lanewise.engine.tracking import Job

# A step is planned so long before the one that runs is expected to end: what comes until then is
# part of it. The second is a part of that step's time.
LEAD_S, LEAD_SHARE = 0.010, 0.2


@dataclass(slots=True)
class StepInFlight:
    """A step that was begun."""

    runner: AheadRunner
    step: Step
    n_rows: int
    work: Work
    began: float  # at the earliest
    expected_s: float  # that it takes; 0 = not known
    adapters: Items[LoadedAdapter]  # held until it has run, even if their requests are cancelled
    copies: Copies  # that it makes

    def let_go(self) -> None:
        """It has run, or never will."""
        for adapter in self.adapters:
            adapter.release()

    def time_left(self, now: float) -> float:
        """Seconds until it is time to plan the next one."""
        lead_s = max(LEAD_S, LEAD_SHARE * self.expected_s)
        return self.began + self.expected_s - lead_s - now


def keep_adapters(step: Step) -> list[LoadedAdapter]:
    """Keep the adapters of a step's sequences, which are in use, in memory."""
    named = [turn.sequence.request.adapter for turn in step.turns]
    adapters = {one for one in named if one is not None}
    for adapter in adapters:
        adapter.keep()
    return list(adapters)


def can_run_ahead(step: Step, jobs: Mapping[Sequence, Job]) -> bool:
    """Whether all that a step needs to know of tokens still to be drawn is which they are.

    Grammars and scores of prompts need the tokens themselves, before the step begins.
    """
    for turn in step.turns:
        sequence = turn.sequence
        if turn.scored or sequence.n_most == sequence.n_prompt:
            return False
        if jobs[sequence].sampler.constraint is not None:
            return False
    return bool(step.turns)
