"""Where snapshots of recurrent states are taken, and what new sequences find.

To continue after a known beginning, a sequence of a model with states needs its blocks and the
state at that point. A state exists only while a sequence ends a step there. So prompts are cut into
chunks that end where a state will be wanted. These are before the last token (the same prompt
again, and the conversation's next turn), where two texts diverge, and at regular distances.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from lanewise.engine.base.block_pool import BlockPool, Key
from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.snapshots import Snapshots
from lanewise.engine.base.step import Turn
from lanewise.engine.base.window import Windows
from lanewise.engine.kv.prefix import Blocks, GroupPrefix, Prefix, find_in_all, find_prefix
from lanewise.runtime import BLOCK_TOKENS, KvLayout

# Least blocks between two cuts of a prompt, as each cut costs one more step: 64 tokens take little
# longer than reading all weights.
MIN_BLOCKS = 2
PROMPT_BLOCKS = 8  # regular distance of cuts in a prompt
TOKENS_PER_SNAPSHOT = 1024


def blocks_per_snapshot(layout: KvLayout) -> int:
    """KV cache blocks per snapshot, if no setting says otherwise."""
    return TOKENS_PER_SNAPSHOT // BLOCK_TOKENS * len(layout.windows)


def blocks_between(layout: KvLayout, max_draft: int) -> int:
    """Blocks of an answer between two snapshots: at most those that are as large as a snapshot.

    Copying a state is no more traffic than the sequence's step itself, which reads and writes all
    of it. Of an answer only the last snapshot stays.
    """
    of_block = layout.block_bytes * len(layout.windows)
    return min(PROMPT_BLOCKS, max(1, -(-layout.place_bytes(max_draft) // of_block)))


@dataclass(slots=True)
class _Plan:
    """Where a running sequence has its state copied."""

    stops: list[int]  # number of blocks before each cut of its first tokens, ascending
    lasting: set[int] = field(default_factory=set)  # the cuts that are not at regular distances
    passing: Key | None = None  # key of its last snapshot at a regular distance
    n_passing: int = 0  # blocks before it


@dataclass(frozen=True, slots=True)
class Beginning:
    """The known beginning of a sequence with which it can start."""

    n_full: int
    blocks: list[list[int]]  # of each group: those that later tokens attend to
    n_alike: int  # full blocks that are known, with or without a state


def _ignore(key: Key) -> None:
    pass


class NoStates:
    """What a model without recurrent states has in place of ``States``: nothing is planned."""

    exist = False  # whether layers of the model keep a state

    def __init__(self, snapshots: Snapshots | None = None) -> None:
        self.snapshots = snapshots or Snapshots(0, 0)
        # Called with each snapshot that later texts may want even after a restart.
        self.on_lasting: Callable[[Key], None] = _ignore

    def find_prefix(
        self,
        sequence: Scheduled,
        pool: BlockPool,
        windows: Windows,
        coming_blocks: Mapping[Key, Scheduled],
        n_stored: int = 0,
    ) -> Prefix | None:
        """As ``prefix.find_prefix``."""
        return find_prefix(sequence, pool, windows, coming_blocks)

    def find_beginning(
        self, sequence: Scheduled, blocks: Blocks, windows: Windows, stored: Container[Key] = ()
    ) -> Beginning:
        """The longest beginning of full blocks; its state is in memory or among ``stored``."""
        most = sequence.n_reusable // BLOCK_TOKENS
        n_full, found = find_in_all(sequence, most, blocks, windows)
        return Beginning(n_full, found, n_full)

    def begin(self, sequence: Scheduled, prefix: Prefix) -> None:
        """As ``States.begin``, and so are the others."""

    def cut(self, sequence: Scheduled, count: int) -> int:
        return count

    def reach(self, turn: Turn, end: int) -> None:
        pass

    def note_computed(self, turn: Turn, end: int) -> None:
        pass

    def drop(self, turn: Turn) -> None:
        pass

    def hide(self, sequence: Scheduled) -> None:
        pass

    def leave(self, sequence: Scheduled) -> None:
        pass


class States(NoStates):
    """Plans snapshots for running sequences, and finds those with which new ones can start.

    Of a sequence's snapshots at regular distances only the last is kept for long: the next turn of
    its conversation continues there.
    """

    exist = True

    def __init__(self, snapshots: Snapshots, every_blocks: int) -> None:
        super().__init__(snapshots)
        self._every = every_blocks  # blocks between two in an answer
        self._every_of_prompt = max(every_blocks, PROMPT_BLOCKS)
        self._plans: dict[Scheduled, _Plan] = {}
        self._coming: dict[Key, Scheduled] = {}  # snapshots of prompts that are being computed

    def find_prefix(
        self,
        sequence: Scheduled,
        pool: BlockPool,
        windows: Windows,
        coming_blocks: Mapping[Key, Scheduled],
        n_stored: int = 0,
    ) -> Prefix | None:
        """As ``prefix.find_prefix``, where all groups have the blocks and there is a snapshot.

        None if a running sequence will take a later usable snapshot. It may be asked to here, at
        the end of the blocks that both texts share. A store has ``n_stored`` of its first blocks.
        """
        most = sequence.n_reusable // BLOCK_TOKENS
        found = self.find_beginning(sequence, pool, windows)
        n_full, n_alike = found.n_full, max(found.n_alike, n_stored)
        while n_alike < most and sequence.block_key(n_alike) in coming_blocks:
            n_alike += 1
        awaited = next(
            (i for i in range(n_alike, n_full, -1) if sequence.key_before(i) in self._coming), 0
        )
        if n_alike - max(n_full, awaited) >= MIN_BLOCKS:
            leader = coming_blocks.get(sequence.key_before(n_alike))
            if leader is not None and self._can_add(leader, n_alike):
                return None
        if awaited:
            return None
        groups = [GroupPrefix(tuple(blocks)) for blocks in found.blocks]
        return Prefix(tuple(groups), n_full, n_alike=n_alike)

    def find_beginning(
        self, sequence: Scheduled, blocks: Blocks, windows: Windows, stored: Container[Key] = ()
    ) -> Beginning:
        """As ``NoStates.find_beginning``."""
        most = sequence.n_reusable // BLOCK_TOKENS
        n_full, found = find_in_all(sequence, most, blocks, windows)
        n_alike = n_full
        while (n_here := self._deepest(sequence, n_full, stored)) < n_full:
            n_full, found = find_in_all(sequence, n_here, blocks, windows)
        return Beginning(n_full, found, n_alike)

    def begin(self, sequence: Scheduled, prefix: Prefix) -> None:
        """Restore the state with which a new sequence starts, and plan its snapshots."""
        first, sequence.n_accepted = prefix.n_full, 0
        if first:
            key = sequence.key_before(first)
            sequence.n_accepted = self.snapshots.restore(key, sequence.table_row)
            self.on_lasting(key)
        plan = self._plans[sequence] = _Plan([])
        if not self.snapshots.n_places:
            return
        last = (len(sequence.tokens) - 1) // BLOCK_TOKENS
        for place in (prefix.n_alike, sequence.n_reusable // BLOCK_TOKENS, last):
            if place - max(first, *plan.lasting, 0) >= MIN_BLOCKS:
                plan.lasting.add(place)
        every = self._every_of_prompt
        between = [
            place
            for place in range((first // every + 1) * every, last, every)
            if all(abs(place - other) >= MIN_BLOCKS for other in (first, *plan.lasting))
        ]
        plan.stops = sorted([*plan.lasting, *between])
        for place in plan.stops:
            self._coming.setdefault(sequence.key_before(place), sequence)

    def cut(self, sequence: Scheduled, count: int) -> int:
        """How many of its next ``count`` tokens a sequence runs before its state is copied."""
        here, stops = sequence.n_cached, self._plans[sequence].stops
        place = bisect_right(stops, here // BLOCK_TOKENS)
        if place < len(stops):
            return min(count, stops[place] * BLOCK_TOKENS - here)
        if here < sequence.n_admitted or not self.snapshots.n_places:
            return count
        every = self._every * BLOCK_TOKENS
        return min(count, every - here % every)

    def reach(self, turn: Turn, end: int) -> None:
        """Plan a copy of the state if a turn that ends at ``end`` has reached a cut.

        The next step makes the copy. Accepted guesses are not in the state yet but stored beside
        it, so the copy can stand for the state after each of them.
        """
        sequence = turn.sequence
        sequence.n_accepted = turn.n_accepted
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
        """A turn has computed up to ``end``: make its planned snapshot findable."""
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
            if place in plan.lasting:
                self.on_lasting(key)
            else:
                if plan.passing is not None:
                    self.snapshots.give_way(plan.passing)
                plan.passing, plan.n_passing = key, place

    def drop(self, turn: Turn) -> None:
        """Free a turn's planned snapshot: its contents are not what was planned."""
        if turn.snapshot is not None:
            self.snapshots.drop(turn.snapshot)
            turn.snapshot = None

    def hide(self, sequence: Scheduled) -> None:
        """Remove a sequence's snapshots, the one it started with included, from the index."""
        for index in range(sequence.n_known // BLOCK_TOKENS):
            self.snapshots.forget(sequence.block_key(index))

    def leave(self, sequence: Scheduled) -> None:
        """Forget a sequence that gives its row back."""
        plan = self._plans.pop(sequence)
        for place in plan.stops:
            self._forget_coming(sequence, sequence.key_before(place))
        # What the answer adds is worth a snapshot if computing it again takes more than a step.
        if plan.passing is not None and plan.n_passing >= max((*plan.lasting, 0)) + PROMPT_BLOCKS:
            self.on_lasting(plan.passing)

    def _deepest(self, sequence: Scheduled, n_full: int, stored: Container[Key]) -> int:
        """The number of blocks, at most ``n_full``, at whose end the last snapshot is."""
        here = n_full
        while here and (key := sequence.key_before(here)) not in self.snapshots:
            if key in stored:
                break
            here -= 1
        return here

    def _can_add(self, leader: Scheduled, place: int) -> bool:
        """Add a cut for a running sequence unless it is further; returns whether it was added."""
        plan = self._plans.get(leader)
        if plan is None or leader.is_hidden or leader.n_cached >= place * BLOCK_TOKENS:
            return False
        if not self.snapshots.n_places or _is_in(plan.stops, place):
            return False
        insort(plan.stops, place)
        plan.lasting.add(place)
        self._coming.setdefault(leader.key_before(place), leader)
        return True

    def _forget_coming(self, sequence: Scheduled, key: Key) -> None:
        if self._coming.get(key) is sequence:
            del self._coming[key]


def states_for(config: SchedulerConfig) -> NoStates:
    """The planner of snapshots, if the model has states."""
    if config.n_snapshots is None:
        return NoStates()
    n_places = config.n_snapshots if config.prefix_cache else 0
    return States(Snapshots(config.max_seqs, n_places), config.snapshot_blocks)


def _ends_of_blocks(first: int, end: int) -> range:
    """Numbers of blocks that end at ``first`` to ``end`` tokens, the largest first."""
    return range(end // BLOCK_TOKENS, (first - 1) // BLOCK_TOKENS, -1)


def _is_in(stops: list[int], place: int) -> bool:
    index = bisect_left(stops, place)
    return index < len(stops) and stops[index] == place
