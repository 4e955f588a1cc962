"""Places and blocks for a sequence that waits: whether there are some, and who gives some up."""

from collections.abc import Sequence

from lanewise.engine.base.block_pool import BlockPool
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.kv.held_blocks import HeldBlocks
from lanewise.engine.kv.prefix import Prefix
from lanewise.engine.scheduling.background import split
from lanewise.engine.scheduling.waiting import Shares, who_gives_way


class Room:
    """What running sequences hold."""

    def __init__(self, pool: BlockPool, blocks: HeldBlocks, shares: Shares) -> None:
        self._pool, self._blocks, self._shares = pool, blocks, shares

    def lacks_blocks(self, sequence: Scheduled, prefix: Prefix, n_running: int) -> bool:
        """Whether too few blocks are free for a sequence beside so many others."""
        return self._blocks.n_lacking(sequence, prefix, n_running) > self._pool.n_free

    def who_gives_way(
        self, sequence: Scheduled, prefix: Prefix, running: Sequence[Scheduled]
    ) -> list[Scheduled]:
        """Running sequences that a newcomer has a right to replace; empty if it has none."""
        victims: list[Scheduled] = []
        if sequence.request.is_background:
            return victims
        if given := self._given_by_background(sequence, prefix, running):
            return given
        if not self._blocks.free_rows:
            victims = who_gives_way(sequence, running, [1] * len(running), 1, self._shares)
            if not victims:
                return []
            running = [one for one in running if one is not victims[0]]
        free = self._pool.n_free + sum(map(self._blocks.n_freed, victims))
        lacking = self._blocks.n_lacking(sequence, prefix, len(running)) - free
        if lacking > 0:
            sizes = [self._blocks.n_freed(one) for one in running]
            more = who_gives_way(sequence, running, sizes, lacking, self._shares)
            victims = victims + more if more else []
        return victims

    def _given_by_background(
        self, sequence: Scheduled, prefix: Prefix, running: Sequence[Scheduled]
    ) -> list[Scheduled]:
        """The sequences in the background whose place and blocks are enough, if there are any."""
        victims: list[Scheduled] = []
        free = self._pool.n_free
        if self._blocks.free_rows and not self.lacks_blocks(sequence, prefix, len(running)):
            return victims
        for one in reversed(running[split(running) :]):
            victims.append(one)
            free += self._blocks.n_freed(one)
            n_others = len(running) - len(victims)
            if self._blocks.n_lacking(sequence, prefix, n_others) <= free:
                return victims
        return []
