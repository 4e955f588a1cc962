"""Which places hold snapshots of which texts' states, and which copies are to be made.

The state of a running sequence is in the place with the number of its row of block tables
(``lw_batch``). Snapshots are copies in the places after these rows, made at the end of a block. The
block's key is the snapshot's key.
"""

from collections import OrderedDict

from lanewise.engine.base.block_pool import Key

StateCopy = tuple[int, int]  # from, to


class Snapshots:
    """Places for snapshots by key; the least recently used one is overwritten first.

    The next step makes all planned copies before its tokens, in the order planned. So a place may
    be reused as soon as the copies that read or write it are planned.
    """

    def __init__(self, first_place: int, n_places: int) -> None:
        self.n_places = n_places
        self.n_taken = self.n_used = 0  # so far
        self._free = list(range(first_place, first_place + n_places))
        self._place_of: OrderedDict[Key, int] = OrderedDict()  # next to be overwritten first
        self._accepted: dict[int, int] = {}  # accepted guesses to be applied when the state is read
        self._copies: list[StateCopy] = []  # not made yet

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
        self._copies.append((place, row))
        self.n_used += 1
        return self._accepted[place]

    def take(self, row: int, n_accepted: int = 0) -> int | None:
        """Plan a copy of a row's state and return its place; None if no place is free.

        The copy stands for the state after the first ``n_accepted`` guesses stored with it. It
        cannot be found before ``keep`` names it; ``drop`` frees it.
        """
        if not self._free:
            if not self._place_of:
                return None
            self._free.append(self._place_of.popitem(last=False)[1])
        place = self._free.pop()
        self._copies.append((row, place))
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
        if place is not None:
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
