"""Which request is served next: the most important first, clients in turn, short requests first."""

from collections import Counter, deque
from collections.abc import Iterator
from collections.abc import Sequence as Items
from itertools import count

from lanewise.engine.sequence import Sequence

OUTPUT_WEIGHT = 2  # a token of an answer costs a step's share; tokens of a prompt share a step
MAX_SAVED = 1024

Tag = tuple[float, int]
Rank = tuple[int, float, Tag]


class Shares:
    """Tokens computed for each client, as in start-time fair queueing.

    Of clients that have work, the one with the smallest count is next. One that comes back after
    steps without it begins where the client was that was started last, and at most ``MAX_SAVED``
    behind all others: no client saves up while idle.
    """

    def __init__(self) -> None:
        self._computed: dict[int, float] = {}
        self._n_sequences: Counter[int] = Counter()  # of clients that have any
        self._floor = 0.0
        self.n_steps = 0
        self._left_at: dict[int, int] = {}  # the step before which a client had nothing more
        self._arrivals = count()

    def enter(self, sequence: Sequence) -> None:
        """A sequence has come; note where its prompt would be done if it ran alone."""
        client = sequence.request.client
        if not self._n_sequences[client]:
            before = self._computed.get(client, 0.0)
            if self.n_steps > self._left_at.get(client, -1):
                least = min((self._computed[one] for one in +self._n_sequences), default=0.0)
                before = max(before, self._floor, least - MAX_SAVED)
            self._computed[client] = before
        self._n_sequences[client] += 1
        done_at = self._computed[client] + sequence.n_before + sequence.n_prompt
        sequence.tag = (done_at, next(self._arrivals))

    def note_step(self) -> None:
        """A step is planned."""
        self.n_steps += 1

    def note_started(self, sequence: Sequence) -> None:
        """A sequence that waited runs now."""
        self._floor = max(self._floor, self._computed[sequence.request.client])

    def leave(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        client = sequence.request.client
        self._n_sequences[client] -= 1
        if not self._n_sequences[client]:
            self._left_at[client] = self.n_steps

    def note(self, sequence: Sequence, n_prompt: int, n_drawn: int) -> None:
        """So many tokens of a prompt were computed, and so many of an answer drawn."""
        self._computed[sequence.request.client] += n_prompt + OUTPUT_WEIGHT * n_drawn

    def of(self, client: int) -> float:
        """What was computed for a client that has sequences."""
        return self._computed[client]

    def rank(self, sequence: Sequence) -> Rank:
        """Whose prompt comes first in a step: the smallest."""
        request = sequence.request
        return request.priority, self._computed[request.client], sequence.tag


class WaitingQueue:
    """Sequences that wait: by priority, then by what their client has got, then by their tag.

    A tag is what the client had got when the sequence came, plus its prompt: a short request passes
    long ones, and a long one is passed by no more work than it brings itself. Sequences of one
    request follow each other, behind requests of their client of which fewer run.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        # By priority, client and request.
        self._lines: dict[int, dict[int, dict[object, deque[Sequence]]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, by priority; clients and requests one after the other."""
        for priority in sorted(self._lines):
            for groups in self._lines[priority].values():
                for line in groups.values():
                    yield from line

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence behind those of its request."""
        self._line(sequence).append(sequence)
        self._size += 1

    def put_back(self, sequence: Sequence) -> None:
        """Put a sequence that was taken out before the others of its request."""
        self._line(sequence).appendleft(sequence)
        self._size += 1

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        self._line(sequence).remove(sequence)
        self._drop_if_empty(sequence)

    def pop(self, running: Items[Sequence]) -> Sequence:
        """Take out the sequence that is next, beside those that run."""
        clients = self._lines[min(self._lines)]
        client = next(iter(clients))
        if len(clients) > 1:
            promised = Counter(dict.fromkeys(clients, 0))
            for one in running:
                promised[one.request.client] += max(0, one.n_admitted - one.n_cached)
            client = min(clients, key=lambda one: self._shares.of(one) + promised[one])
        groups = clients[client]
        line = next(iter(groups.values()))
        if len(groups) > 1:
            n_running = Counter(one.group for one in running)
            line = min(groups.values(), key=lambda line: _order(line[0], n_running))
        sequence = line.popleft()
        self._drop_if_empty(sequence)
        return sequence

    def _line(self, sequence: Sequence) -> deque[Sequence]:
        clients = self._lines.setdefault(sequence.request.priority, {})
        groups = clients.setdefault(sequence.request.client, {})
        return groups.setdefault(sequence.group, deque())

    def _drop_if_empty(self, sequence: Sequence) -> None:
        self._size -= 1
        clients = self._lines[sequence.request.priority]
        groups = clients[sequence.request.client]
        if not groups[sequence.group]:
            del groups[sequence.group]
            if not groups:
                del clients[sequence.request.client]
                if not clients:
                    del self._lines[sequence.request.priority]


def _order(sequence: Sequence, n_running: Counter[object]) -> tuple[int, bool, Tag]:
    """The order of sequences: one that has run before had to give way, and comes back first."""
    return n_running[sequence.group], sequence.n_preempted == 0, sequence.tag


def who_gives_way(
    newcomer: Sequence,
    running: Items[Sequence],
    sizes: Items[int],
    wanted: int,
    shares: Shares,
) -> list[Sequence]:
    """Running sequences that give way to a newcomer that lacks ``wanted``; empty if none must.

    ``sizes`` says how much each of them holds of what is lacking: places or blocks. The one that
    holds most, another client that has got more or another request of the same one, gives up what
    was begun last, as long as it keeps no less than the newcomer's side then has. So no two take
    from each other in turn, and none loses the last it has. The first that runs is never disturbed,
    nor is a sequence that is more important than the newcomer.
    """
    client, group = newcomer.request.client, newcomer.group
    held: Counter[object] = Counter()  # by client and by request
    for one, size in zip(running, sizes, strict=True):
        held[one.request.client] += size
        held[one.group] += size

    def claim(one: Sequence, size: int) -> tuple[bool, int]:
        """How good the newcomer's claim is to what a sequence holds; (_, 0) if it has none."""
        other = one.request.client != client
        holder = one.request.client if other else one.group
        may_take = shares.of(one.request.client) > shares.of(client) if other else holder != group
        keeps_enough = held[holder] - size >= held[client if other else group] + wanted
        return other, held[holder] if may_take and keeps_enough else 0

    left = [
        (one, size)
        for one, size in list(zip(running, sizes, strict=True))[:0:-1]
        if size and one.request.priority >= newcomer.request.priority
    ]
    chosen: list[Sequence] = []
    while wanted > 0:
        one, size = max(left, key=lambda held_by: claim(*held_by), default=(newcomer, 0))
        if not size or not claim(one, size)[1]:
            return []
        left.remove((one, size))
        chosen.append(one)
        held[one.request.client] -= size
        held[one.group] -= size
        wanted -= size
    return chosen
