"""Which places for states hold snapshots of which texts, and what is copied where.

Where layers keep a state, that of a running sequence is in the place of its row of block tables
(``lw_batch``). A snapshot is a copy of it in one of the places behind those, as it stood at the end
of a block, whose key is the snapshot's too.
"""

from collections import OrderedDict

from lanewise.engine.block_pool import Key

StateCopy = tuple[int, int]  # from, to


class Snapshots:
    """Places for snapshots, by what they hold; the one unused for longest goes first.

    Copies are made by the next step before its tokens, all of them, in the order in which they were
    planned. So a place may be given away as soon as the copies that read or write it are planned:
    what comes later is also made later.
    """

    def __init__(self, first_place: int, n_places: int) -> None:
        self.n_places = n_places
        self.n_taken = self.n_used = 0  # so far
        self._free = list(range(first_place, first_place + n_places))
        self._place_of: OrderedDict[Key, int] = OrderedDict()  # who goes next comes first
        self._accepted: dict[int, int] = {}  # guesses that each place remembers and that count
        self._copies: list[StateCopy] = []  # not made yet

    def __contains__(self, key: Key) -> bool:
        return key in self._place_of

    @property
    def n_held(self) -> int:
        """Snapshots that can be found."""
        return len(self._place_of)

    def restore(self, key: Key, row: int) -> int:
        """Have the state of a row begin as a snapshot that is there.

        Returns how many of the guesses that it remembers came true: the next step is told.
        """
        self._place_of.move_to_end(key)
        place = self._place_of[key]
        self._copies.append((place, row))
        self.n_used += 1
        return self._accepted[place]

    def take(self, row: int, n_accepted: int = 0) -> int | None:
        """Have a row's state copied before it goes on, and say where to; None without a place.

        It is the state behind the first ``n_accepted`` guesses that it remembers. It is not
        found until ``keep`` says what it is, or ``drop`` that it is nothing.
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
        """A place that was taken holds the state at the end of the block with this key."""
        if key in self._place_of:  # somebody else was as far
            self._place_of.move_to_end(key)
            self._free.append(place)
            return
        self._place_of[key] = place
        self.n_taken += 1

    def drop(self, place: int) -> None:
        """A place that was taken holds nothing of use."""
        self._free.append(place)

    def forget(self, key: Key) -> None:
        """Let a snapshot be found no more."""
        place = self._place_of.pop(key, None)
        if place is not None:
            self._free.append(place)

    def give_way(self, key: Key) -> None:
        """Of all snapshots this one, if it is there, is the next to go."""
        if key in self._place_of:
            self._place_of.move_to_end(key, last=False)

    def take_copies(self) -> list[StateCopy]:
        """The copies that the next step makes, each given out once."""
        copies, self._copies = self._copies, []
        return copies

    def give_back(self, copies: list[StateCopy]) -> None:
        """Have copies made by the next step, as the one that took them last did nothing."""
        self._copies = copies + self._copies
