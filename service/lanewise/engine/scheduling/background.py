"""How much of a step requests in the background have: what others leave over."""

from collections.abc import Sequence

from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.step import Budget
from lanewise.engine.scheduling.pacing import MAX_CHUNK, TILE, Pacer, Work

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
    within = pacer.cost.rows_within(pacer.target_s, Work(), context)
    return max(ALONE_ROWS, n_decodes + TILE, within)


def split(running: Sequence[Scheduled]) -> int:
    """How many of the running sequences, which are by priority, are not in the background."""
    count = len(running)
    while count and running[count - 1].request.is_background:
        count -= 1
    return count


def decode_in_turns(budget: Budget, decodes: list[Scheduled], n_steps: int) -> None:
    """Spend the budget on those whose last turn was longest ago, if not all have room."""
    if len(decodes) > min(budget.tokens, budget.logits):
        decodes.sort(key=lambda one: one.last_step)
    for sequence in decodes:
        n_turns = len(budget.turns)
        budget.spend_on(sequence)
        if len(budget.turns) > n_turns:
            sequence.last_step = n_steps
