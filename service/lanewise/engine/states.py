"""Where snapshots of states are taken, and what sequences find behind them.

Models with layers that keep a state: what goes on behind a known beginning needs its blocks and the
state at its end, which exists only while somebody computes just that token. So prompts are cut into
chunks that end where a state will be wanted: before the last token, which is where the same prompt
and the next turn of a conversation go on; where it parts from another text; and now and then.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field

from lanewise.engine.block_pool import BlockPool, Key
from lanewise.engine.config import SchedulerConfig
from lanewise.engine.prefix import GroupPrefix, Prefix, find_in_all
from lanewise.engine.sequence import Sequence
from lanewise.engine.snapshots import Snapshots
from lanewise.engine.step import Turn
from lanewise.engine.window import Windows
from lanewise.runtime import BLOCK_TOKENS, KvLayout

# Blocks between two places in a prompt, as each cut makes one more step: 64 tokens are computed in
# not much more time than a step takes that reads all weights.
LEAST_BLOCKS = 2
PROMPT_BLOCKS = 8  # between places in a prompt of which nothing else is known
TOKENS_PER_SNAPSHOT = 1024


def blocks_per_snapshot(layout: KvLayout) -> int:
    """Blocks of the KV cache for which there is one snapshot, when no setting says how many."""
    return TOKENS_PER_SNAPSHOT // BLOCK_TOKENS * len(layout.windows)


def blocks_between(layout: KvLayout, max_draft: int) -> int:
    """Blocks of an answer between two snapshots: at most those whose keys and values take as much.

    A snapshot now and then moves no more than a step with the sequence does, which reads and writes
    all of its state; of an answer only the last one stays.
    """
    of_block = layout.block_bytes * len(layout.windows)
    return min(PROMPT_BLOCKS, max(1, -(-layout.place_bytes(max_draft) // of_block)))


@dataclass(slots=True)
class _Plan:
    """Where a running sequence has its state copied."""

    stops: list[int]  # in what it had when it was admitted: blocks before each, ascending
    lasting: set[int] = field(default_factory=set)  # those that are not there just now and then
    passing: Key | None = None  # its last snapshot that was


class States:
    """Plans snapshots for running sequences, and finds those that new ones can begin with.

    Of the snapshots that a sequence takes now and then, all but its last are the first to go: the
    next turn of its conversation goes on behind the last.
    """

    def __init__(self, snapshots: Snapshots, every_blocks: int) -> None:
        self.snapshots = snapshots
        self._every = every_blocks  # between two in an answer
        self._every_of_prompt = max(every_blocks, PROMPT_BLOCKS)
        self._plans: dict[Sequence, _Plan] = {}
        self._coming: dict[Key, Sequence] = {}  # snapshots of prompts that are being computed

    def find_prefix(
        self,
        sequence: Sequence,
        pool: BlockPool,
        windows: Windows,
        coming_blocks: Mapping[Key, Sequence],
    ) -> Prefix | None:
        """As ``prefix.find_prefix``: all groups of layers have the blocks, and there is a snapshot.

        None if a running sequence will take one further on, perhaps because it is asked to here: at
        the last block that both have in common.
        """
        most = (len(sequence.tokens) - 1) // BLOCK_TOKENS
        n_full, found = find_in_all(sequence, most, pool, windows)
        n_alike = n_full
        while (n_here := self._deepest(sequence, n_full)) < n_full:
            n_full, found = find_in_all(sequence, n_here, pool, windows)
        while n_alike < most and sequence.block_key(n_alike) in coming_blocks:
            n_alike += 1
        awaited = next(
            (i for i in range(n_alike, n_full, -1) if sequence.key_before(i) in self._coming), 0
        )
        if n_alike - max(n_full, awaited) >= LEAST_BLOCKS:
            leader = coming_blocks.get(sequence.key_before(n_alike))
            if leader is not None and self._can_add(leader, n_alike):
                return None
        if awaited:
            return None
        groups = [GroupPrefix(tuple(blocks)) for blocks in found]
        return Prefix(tuple(groups), n_full, n_alike=n_alike)

    def begin(self, sequence: Sequence, prefix: Prefix) -> None:
        """A sequence was given a row: give it the state it begins with, and plan its snapshots."""
        first, sequence.n_accepted = prefix.n_full, 0
        if first:
            key = sequence.key_before(first)
            sequence.n_accepted = self.snapshots.restore(key, sequence.table_row)
        plan = self._plans[sequence] = _Plan([])
        if not self.snapshots.n_places:
            return
        last = (len(sequence.tokens) - 1) // BLOCK_TOKENS
        for place in (prefix.n_alike, last):
            if place - max(first, *plan.lasting, 0) >= LEAST_BLOCKS:
                plan.lasting.add(place)
        every = self._every_of_prompt
        between = [
            place
            for place in range((first // every + 1) * every, last, every)
            if all(abs(place - other) >= LEAST_BLOCKS for other in (first, *plan.lasting))
        ]
        plan.stops = sorted([*plan.lasting, *between])
        for place in plan.stops:
            self._coming.setdefault(sequence.key_before(place), sequence)

    def cut(self, sequence: Sequence, count: int) -> int:
        """How many of its next ``count`` tokens a sequence runs in one step, to be copied then."""
        here, stops = sequence.n_cached, self._plans[sequence].stops
        place = bisect_right(stops, here // BLOCK_TOKENS)
        if place < len(stops):
            return min(count, stops[place] * BLOCK_TOKENS - here)
        if here < sequence.n_admitted or not self.snapshots.n_places:
            return count
        every = self._every * BLOCK_TOKENS
        return min(count, every - here % every)

    def reach(self, turn: Turn, end: int) -> None:
        """A turn is to compute or has computed up to ``end``: have the state copied, if it should.

        The copy is made by the step after that one. Guesses that came true are not in the state
        yet, only remembered beside it: so it can become that behind each of them.
        """
        sequence = turn.sequence
        if sequence.is_hidden or not self.snapshots.n_places:
            return
        first = end - turn.n_accepted
        for place in _ends_of_blocks(first, end):
            here = place * BLOCK_TOKENS
            is_stop = _is_in(self._plans[sequence].stops, place)
            if not is_stop and (here < sequence.n_admitted or place % self._every):
                continue
            if here <= sequence.n_known and sequence.key_before(place) in self.snapshots:
                continue
            turn.snapshot = self.snapshots.take(sequence.table_row, here - first)
            turn.snapshot_end = here
            return

    def note_computed(self, turn: Turn, end: int) -> None:
        """A turn has computed up to ``end``: what was copied, or will be, can be found."""
        sequence = turn.sequence
        if sequence.is_hidden:
            self.drop(turn)
            return
        plan = self._plans[sequence]
        for place in _ends_of_blocks(end - turn.n_accepted, end):
            if _is_in(plan.stops, place):
                self._forget_coming(sequence, sequence.key_before(place))
        if turn.snapshot is not None:
            place = turn.snapshot_end // BLOCK_TOKENS
            key = sequence.key_before(place)
            self.snapshots.keep(key, turn.snapshot)
            turn.snapshot = None
            if place not in plan.lasting:
                if plan.passing is not None:
                    self.snapshots.give_way(plan.passing)
                plan.passing = key

    def drop(self, turn: Turn) -> None:
        """What a turn would have had copied is not what it was to be."""
        if turn.snapshot is not None:
            self.snapshots.drop(turn.snapshot)
            turn.snapshot = None

    def hide(self, sequence: Sequence) -> None:
        """Remove a sequence's states, the one it began with included, from those found."""
        for index in range(sequence.n_known // BLOCK_TOKENS):
            self.snapshots.forget(sequence.block_key(index))

    def leave(self, sequence: Sequence) -> None:
        """A sequence gives its row back."""
        for place in self._plans.pop(sequence).stops:
            self._forget_coming(sequence, sequence.key_before(place))

    def _deepest(self, sequence: Sequence, n_full: int) -> int:
        """The last block, of the first ``n_full``, behind which there is a snapshot."""
        here = n_full
        while here and sequence.key_before(here) not in self.snapshots:
            here -= 1
        return here

    def _can_add(self, leader: Sequence, place: int) -> bool:
        """Have a running sequence copied behind one more block, if it has not come so far."""
        plan = self._plans.get(leader)
        if plan is None or leader.is_hidden or leader.n_cached >= place * BLOCK_TOKENS:
            return False
        if not self.snapshots.n_places or _is_in(plan.stops, place):
            return False
        insort(plan.stops, place)
        plan.lasting.add(place)
        self._coming.setdefault(leader.key_before(place), leader)
        return True

    def _forget_coming(self, sequence: Sequence, key: Key) -> None:
        if self._coming.get(key) is sequence:
            del self._coming[key]


def states_for(config: SchedulerConfig) -> States | None:
    """Plans snapshots, where layers keep a state."""
    if config.n_snapshots is None:
        return None
    n_places = config.n_snapshots if config.prefix_cache else 0
    return States(Snapshots(config.max_seqs, n_places), config.snapshot_blocks)


def _ends_of_blocks(first: int, end: int) -> range:
    """Which blocks begin behind so many tokens, ``first`` to ``end``; the last one first."""
    return range(end // BLOCK_TOKENS, (first - 1) // BLOCK_TOKENS, -1)


def _is_in(stops: list[int], place: int) -> bool:
    index = bisect_left(stops, place)
    return index < len(stops) and stops[index] == place
