"""What a step costs as a function of its rows, measured while serving."""

from bisect import bisect_right

# Time is interpolated linearly between these numbers of rows.
NODES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 4096, 1 << 20)
# Assumed before any measurement: reading the weights costs as much as the arithmetic of this many
# rows. Rather too many: what is wrongly thought cheap is tried once and measured, what is wrongly
# thought dear is never tried.
ROWS_OF_A_PASS = 16
FAMILIAR = 4  # after this many steps of a size, a deviation means a change of speed
LAST_RATE = 0.03  # weight of a measurement; the first ones are averaged
SPEED_RATE = 1 / 8  # how far all costs follow one familiar step: the speed has changed
FORGETTING_RATE = 1 / 1000  # of the costs of other numbers of rows, each step
MAX_SURPRISE = 0.25  # relative to the expected time; a step that took far longer was disturbed
MAX_FIRST_SURPRISE = 1.0  # the same where little is known


class RowCosts:
    """Seconds of a step as a function of its rows."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._seen = [0] * len(NODES)

    @property
    def are_known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._seconds)

    def seconds(self, rows: int) -> float:
        """The expected seconds of a step with this many rows."""
        left = bisect_right(NODES, rows) - 1
        below = self._seconds[left]
        share = (rows - NODES[left]) / (NODES[left + 1] - NODES[left])
        return below + share * max(0.0, self._seconds[left + 1] - below)

    def note(self, rows: int, seconds: float) -> None:
        """Learn from a step that was run."""
        if not self._seconds:
            self._seconds = [_scaled(seconds, rows, n) for n in NODES]
            return
        left = bisect_right(NODES, rows) - 1
        share = (rows - NODES[left]) / (NODES[left + 1] - NODES[left])
        nodes = [(left, 1 - share), (left + 1, share)] if share else [(left, 1.0)]
        expected_s = sum(weight * self._seconds[node] for node, weight in nodes)
        is_familiar = all(self._seen[node] >= FAMILIAR for node, _ in nodes)
        most = MAX_SURPRISE if is_familiar else MAX_FIRST_SURPRISE
        error = min(most, seconds / expected_s - 1)  # no disturbance makes a step faster
        if is_familiar:
            speed = 1 + SPEED_RATE * error
            self._seconds = [speed * one for one in self._seconds]
            error -= SPEED_RATE * error
        norm = (1 - share) ** 2 + share**2
        for node, weight in nodes:
            self._seen[node] += 1
            rate = max(LAST_RATE, 1 / self._seen[node])
            self._seconds[node] *= (1 + error) ** (rate * weight / norm)
        if is_familiar:
            self._forget(left)
        else:
            self._guess_unseen()

    def _guess_unseen(self) -> None:
        """Derive a cost never measured from the next smaller one measured, or the next larger."""
        seen = [node for node, times in enumerate(self._seen) if times]
        for node, rows in enumerate(NODES):
            if not self._seen[node]:
                place = bisect_right(seen, node)
                near = seen[max(0, place - 1)]
                self._seconds[node] = _scaled(self._seconds[near], NODES[near], rows)
                if 0 < place < len(seen):
                    most = max(self._seconds[near], self._seconds[seen[place]])
                    self._seconds[node] = min(most, self._seconds[node])

    def _forget(self, measured: int) -> None:
        """Let costs of larger steps drift to an optimistic guess: they are then tried again."""
        for node in range(measured + 2, len(NODES)):
            hoped = _scaled(self._seconds[measured], NODES[measured], NODES[node])
            self._seconds[node] += FORGETTING_RATE * (hoped - self._seconds[node])


def _scaled(seconds: float, rows: int, wanted: int) -> float:
    """The time for ``wanted`` rows from the time for ``rows``, by ROWS_OF_A_PASS."""
    return seconds * (ROWS_OF_A_PASS + wanted) / (ROWS_OF_A_PASS + rows)
