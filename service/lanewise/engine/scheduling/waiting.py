"""Which request runs next: by priority, then clients in turn, then short requests first."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import count

from lanewise.engine.base.sequence import Scheduled

OUTPUT_WEIGHT = 2  # cost of an answer's token in prompt tokens, which share a step
MAX_SAVED = 1024

Tag = tuple[float, int]
Rank = tuple[int, float, Tag]


class Shares:
    """Tokens computed for each client, as in start-time fair queueing.

    The client with the smallest count is served next. A client that returns after being idle gets
    at least the count of the client started last, and is at most ``MAX_SAVED`` behind all others:
    idle time saves up no right.
    """

    def __init__(self) -> None:
        self._computed: dict[int, float] = {}
        self._n_sequences: Counter[int] = Counter()  # clients with sequences only
        self._floor = 0.0
        self.n_steps = 0
        self._left_at: dict[int, int] = {}  # the step before which a client ran out of sequences
        self._arrivals = count()

    def enter(self, sequence: Scheduled) -> None:
        """Note a new sequence; tag it with the count at which its prompt would be done."""
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
        """Note that a step is planned."""
        self.n_steps += 1

    def note_started(self, sequence: Scheduled) -> None:
        """Note that a waiting sequence has started."""
        self._floor = max(self._floor, self._computed[sequence.request.client])

    def leave(self, sequence: Scheduled) -> None:
        """Note that a sequence has ended."""
        client = sequence.request.client
        self._n_sequences[client] -= 1
        if not self._n_sequences[client]:
            self._left_at[client] = self.n_steps

    def note(self, sequence: Scheduled, n_prompt: int, n_drawn: int) -> None:
        """Count computed prompt tokens and drawn answer tokens for a sequence's client."""
        self._computed[sequence.request.client] += n_prompt + OUTPUT_WEIGHT * n_drawn

    def of(self, client: int) -> float:
        """The count of a client that has sequences."""
        return self._computed[client]

    def rank(self, sequence: Scheduled) -> Rank:
        """The order of prompts in a step: the smallest comes first."""
        request = sequence.request
        return request.priority, self._computed[request.client], sequence.tag


class WaitingQueue:
    """Waiting sequences: by priority, then by their client's count, then by their tag.

    A tag is the client's count when the sequence came, plus its prompt. So a short request passes
    long ones, and a long one is delayed at most by as much work as it brings itself. Sequences of
    one request follow each other, after requests of their client with fewer running sequences.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        # By priority, then client, then request.
        self._lines: dict[int, dict[int, dict[object, deque[Scheduled]]]] = {}
        self._size = 0
        self._n_background = 0

    @property
    def is_background(self) -> bool:
        """Whether some wait, and all of them are in the background."""
        return 0 < self._n_background == self._size

    @property
    def n_others(self) -> int:
        """Sequences that are not in the background."""
        return self._size - self._n_background

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Scheduled]:
        """All of them by priority, then client by client and request by request."""
        for priority in sorted(self._lines):
            for groups in self._lines[priority].values():
                for line in groups.values():
                    yield from line

    def add(self, sequence: Scheduled) -> None:
        """Put a new sequence after the others of its request."""
        self._line(sequence).append(sequence)
        self._note(sequence, 1)

    def put_back(self, sequence: Scheduled) -> None:
        """Put a sequence that was popped back before the others of its request."""
        self._line(sequence).appendleft(sequence)
        self._note(sequence, 1)

    def remove(self, sequence: Scheduled) -> None:
        """Remove a sequence from anywhere in the queue."""
        self._line(sequence).remove(sequence)
        self._drop_if_empty(sequence)

    def pop(self, running: Sequence[Scheduled]) -> Scheduled:
        """Remove and return the next sequence, given the running ones."""
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

    def _note(self, sequence: Scheduled, more: int) -> None:
        self._size += more
        self._n_background += more * sequence.request.is_background

    def _line(self, sequence: Scheduled) -> deque[Scheduled]:
        clients = self._lines.setdefault(sequence.request.priority, {})
        groups = clients.setdefault(sequence.request.client, {})
        return groups.setdefault(sequence.group, deque())

    def _drop_if_empty(self, sequence: Scheduled) -> None:
        self._note(sequence, -1)
        clients = self._lines[sequence.request.priority]
        groups = clients[sequence.request.client]
        if not groups[sequence.group]:
            del groups[sequence.group]
            if not groups:
                del clients[sequence.request.client]
                if not clients:
                    del self._lines[sequence.request.priority]


def _order(sequence: Scheduled, n_running: Counter[object]) -> tuple[int, bool, Tag]:
    """The order of sequences: a preempted one has run before and comes back first."""
    return n_running[sequence.group], sequence.n_preempted == 0, sequence.tag


def who_gives_way(
    newcomer: Scheduled,
    running: Sequence[Scheduled],
    sizes: Sequence[int],
    wanted: int,
    shares: Shares,
) -> list[Scheduled]:
    """Running sequences that give way to a newcomer that lacks ``wanted``; empty if none must.

    ``sizes`` is what each running sequence holds of the missing thing: places or blocks. The
    largest holder gives up what it began last. That is another client with a higher count, or
    another request of the same client. It must keep at least as much as the newcomer's side then
    has, so no two take from each other in turn, and no holder loses its last sequence. The first
    running sequence is never preempted, nor one with a better priority than the newcomer's.
    """
    client, group = newcomer.request.client, newcomer.group
    held: Counter[object] = Counter()  # what each client and each request holds
    for one, size in zip(running, sizes, strict=True):
        held[one.request.client] += size
        held[one.group] += size

    def claim(one: Scheduled, size: int) -> tuple[bool, int]:
        """How strong the newcomer's claim to a sequence's share is; (_, 0) if there is none."""
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
    chosen: list[Scheduled] = []
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
