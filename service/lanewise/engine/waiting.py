"""Who is served next: the most important first, clients in turn, each client's in order."""

from collections import deque
from collections.abc import Iterator

from lanewise.engine.sequence import Sequence

OUTPUT_WEIGHT = 2  # a token of an answer costs a step's share; tokens of a prompt share a step


class WaitingQueue:
    """Sequences that wait: by priority, then by what their client has got, then by arrival.

    Clients are served as in start-time fair queueing. Each has a count of the tokens computed for
    it, and of those that wait with equal priority the one with the smallest count is next; one that
    comes back begins where the others are, so nobody saves up while idle.
    """

    def __init__(self) -> None:
        self._lines: dict[int, dict[int, deque[Sequence]]] = {}  # by priority and client
        self._served: dict[int, float] = {}
        self._floor = 0.0  # the count of the client that was served last
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, by priority; clients one after the other."""
        for priority in sorted(self._lines):
            for line in self._lines[priority].values():
                yield from line

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of its client's line."""
        client = sequence.request.client
        self._served[client] = max(self._served.get(client, 0.0), self._floor)
        self._line(sequence).append(sequence)
        self._size += 1

    def put_back(self, sequence: Sequence) -> None:
        """Put a sequence that came before all others of its client to their front."""
        self._line(sequence).appendleft(sequence)
        self._size += 1

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        line = self._line(sequence)
        line.remove(sequence)
        self._drop_if_empty(sequence)

    @property
    def highest_priority(self) -> int:
        """The priority of whoever is next."""
        return min(self._lines)

    def pop(self) -> Sequence:
        """Take out whoever is next."""
        lines = self._lines[self.highest_priority]
        client = min(lines, key=self._served.__getitem__) if len(lines) > 1 else next(iter(lines))
        sequence = lines[client].popleft()
        self._drop_if_empty(sequence)
        return sequence

    def note_started(self, sequence: Sequence, n_tokens: int) -> None:
        """A sequence that was taken out is run for the first time; so many tokens of its prompt."""
        client = sequence.request.client
        self._floor = max(self._floor, self._served[client])
        self._served[client] += n_tokens

    def note_drawn(self, sequence: Sequence, n_tokens: int) -> None:
        """Tokens were drawn for a running sequence."""
        self._served[sequence.request.client] += OUTPUT_WEIGHT * n_tokens

    def _line(self, sequence: Sequence) -> deque[Sequence]:
        clients = self._lines.setdefault(sequence.request.priority, {})
        return clients.setdefault(sequence.request.client, deque())

    def _drop_if_empty(self, sequence: Sequence) -> None:
        self._size -= 1
        clients = self._lines[sequence.request.priority]
        if not clients[sequence.request.client]:
            del clients[sequence.request.client]
            if not clients:
                del self._lines[sequence.request.priority]
