"""Which places hold snapshots of which texts' states, and which copies are to be made.

The state of a running sequence is in the place with the number of its row of block tables
(``lw_batch``). Snapshots are copies in the places after these rows, made at the end of a block. The
block's key is the snapshot's key.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from lanewise.engine.base.block_pool import Key

StateCopy = tuple[int, int]  # from, to


class Snapshots:
    """Places for snapshots by key; the least recently used one is overwritten first.

    The next step makes all planned copies before its tokens, in the order planned. So a place may
    be reused by another copy as soon as the copies that read or write it are planned. A store reads
    and writes places beside steps, so it gets only those of which no copy is still to be made.
    """

    def __init__(self, first_place: int, n_places: int) -> None:
        self.n_places = n_places
        self.n_taken = self.n_used = 0  # so far
        self._first_place = first_place
        self._free = list(range(first_place, first_place + n_places))
        self._place_of: OrderedDict[Key, int] = OrderedDict()  # next to be overwritten first
        self._accepted: dict[int, int] = {}  # accepted guesses to be applied when the state is read
        self._copies: list[StateCopy] = []  # not made yet
        self._unmade: Counter[int] = Counter()  # by place: copies that no step has made yet
        # Places that the store reads; true: to be freed then.
        self._held: dict[int, bool] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._place_of

    @property
    def n_held(self) -> int:
        """How many snapshots can be found."""
        return len(self._place_of)

    def restore(self, key: Key, row: int) -> int:
        """Plan a copy of a snapshot into a row's state.

        Returns how many of the guesses stored with it came true; the next step needs the number.
        """
        self._place_of.move_to_end(key)
        place = self._place_of[key]
        self._plan(place, row)
        self.n_used += 1
        return self._accepted[place]

    def take(self, row: int, n_accepted: int = 0) -> int | None:
        """Plan a copy of a row's state and return its place; None if no place is free.

        The copy stands for the state after the first ``n_accepted`` guesses stored with it. It
        cannot be found before ``keep`` names it; ``drop`` frees it.
        """
        place = self._free.pop() if self._free else self._overwritten(self._held)
        if place is not None:
            self._plan(row, place)
            self._accepted[place] = n_accepted
        return place

    def keep(self, key: Key, place: int) -> None:
        """Name the taken place: the state at the end of the block with this key."""
        if key in self._place_of:  # another sequence got here first
            self._place_of.move_to_end(key)
            self._free.append(place)
            return
        self._place_of[key] = place
        self.n_taken += 1

    def drop(self, place: int) -> None:
        """Free a place that was taken: its contents are useless."""
        self._free.append(place)

    def forget(self, key: Key) -> None:
        """Remove a snapshot from the index."""
        place = self._place_of.pop(key, None)
        if place in self._held:
            self._held[place] = True
        elif place is not None:
            self._free.append(place)

    def give_way(self, key: Key) -> None:
        """Make this snapshot, if it exists, the next to be overwritten."""
        if key in self._place_of:
            self._place_of.move_to_end(key, last=False)

    def take_copies(self) -> list[StateCopy]:
        """The copies that the next step makes first, each returned once."""
        copies, self._copies = self._copies, []
        return copies

    def give_back(self, copies: list[StateCopy]) -> None:
        """Queue copies again for the next step: the step that took them did nothing."""
        self._copies = copies + self._copies

    def note_made(self, copies: Iterable[StateCopy]) -> None:
        """A step has made these copies."""
        for copy in copies:
            for place in copy:
                if place >= self._first_place:
                    self._unmade[place] -= 1
                    if self._unmade[place] <= 0:
                        del self._unmade[place]

    # For a store.

    def hold(self, key: Key) -> int | None:
        """The place of a snapshot, which stays as it is until ``let_go``.

        None if there is no such snapshot, it has guesses, or copies of it are still to be made.
        """
        place = self._place_of.get(key)
        if place is None or place in self._unmade or self._accepted[place] or place in self._held:
            return None
        self._held[place] = False
        return place

    def let_go(self, place: int) -> None:
        """Undo ``hold``."""
        if self._held.pop(place):
            self._free.append(place)

    def reserve(self) -> int | None:
        """A place for a snapshot from elsewhere, which ``keep`` names or ``drop`` frees; or None.

        No copy that is still to be made reads or writes it.
        """
        place = next((one for one in reversed(self._free) if one not in self._unmade), None)
        if place is not None:
            self._free.remove(place)
        else:
            place = self._overwritten({*self._held, *self._unmade})
        if place is not None:
            self._accepted[place] = 0
        return place

    def _overwritten(self, kept: Iterable[int]) -> int | None:
        """The place of the snapshot used longest ago that is not among ``kept``, now free."""
        kept = set(kept)
        for key, place in self._place_of.items():
            if place not in kept:
                del self._place_of[key]
                return place
        return None

    def _plan(self, source: int, target: int) -> None:
        self._copies.append((source, target))
        for place in (source, target):
            if place >= self._first_place:
                self._unmade[place] += 1
