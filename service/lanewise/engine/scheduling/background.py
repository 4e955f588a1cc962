"""How much of a step requests in the background have: what others leave over."""

from collections.abc import Collection, Sequence

from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.step import Budget
from lanewise.engine.scheduling.pacing import MAX_CHUNK, TILE, Pacer, Work
from lanewise.engine.scheduling.waiting import Shares

ALONE_ROWS = 64  # of a step without others: enough to use what reading the weights costs


def rows_beside(pacer: Pacer | None, others: Work, context: int, stretch: float) -> int:
    """Rows that may join a step of others: it may take longer by a share of ``stretch``.

    ``context`` tokens come before each row. While nothing is known of what steps cost, the tile
    that the others have begun is filled: kernels compute whole ones.
    """
    if not stretch:
        return 0
    if pacer is None or not pacer.cost.is_known:
        return -others.rows % TILE
    within_s = (1 + stretch) * pacer.cost.seconds(others)
    return pacer.cost.rows_within(within_s, others, context)


def rows_alone(pacer: Pacer | None, n_decodes: int, context: int) -> int:
    """Rows of a step without others: a request that comes meanwhile waits for one short step."""
    if pacer is None or not pacer.cost.is_known:
        return MAX_CHUNK
    within = pacer.cost.rows_within(pacer.target_s / 2, Work(), context)
    return max(ALONE_ROWS, n_decodes + TILE, within)


def split(running: Sequence[Scheduled]) -> int:
    """How many of the running sequences, which are by priority, are not in the background."""
    count = len(running)
    while count and running[count - 1].request.is_background:
        count -= 1
    return count


class Background:
    """Adds to steps what sequences in the background may have of them."""

    def __init__(self, config: SchedulerConfig, pacer: Pacer | None, shares: Shares) -> None:
        self._stretch = config.background_stretch
        self._windows = config.kv_windows
        self._pacer, self._shares = pacer, shares

    def add(
        self,
        budget: Budget,
        running: Sequence[Scheduled],
        held: Collection[Scheduled],
        others: Work,
    ) -> None:
        """Give what a step has left, after the turns of ``others``, to those that run.

        Sequences that are ``held`` have no turn. What is left then is for new ones.
        """
        sequences = running[split(running) :]
        decodes = [one for one in sequences if one.is_decoding and one not in held]
        prompts = [one for one in sequences if not one.is_decoding]
        contexts = [one.n_cached for one in decodes or prompts] or [0]
        context = self._windows.seen(sum(contexts) // len(contexts))
        if budget.turns:
            budget.leave(rows_beside(self._pacer, others, context, self._stretch))
        else:
            budget.leave(rows_alone(self._pacer, len(decodes), context))
        self._decode_in_turns(budget, decodes)
        for sequence in sorted(prompts, key=self._shares.rank):
            budget.spend_on(sequence)

    def _decode_in_turns(self, budget: Budget, decodes: list[Scheduled]) -> None:
        """Spend the budget on those whose last turn was longest ago, if not all have room."""
        if len(decodes) > min(budget.tokens, budget.logits):
            decodes.sort(key=lambda one: one.last_step)
        for sequence in decodes:
            n_turns = len(budget.turns)
            budget.spend_on(sequence)
            if len(budget.turns) > n_turns:
                sequence.last_step = self._shares.n_steps
