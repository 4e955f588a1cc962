"""What a step costs by the rows it has, as measured while serving."""

from bisect import bisect_right

# Between these numbers of rows the time is taken to grow in a straight line.
NODES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 4096, 1 << 20)
# Before more is known: one pass over the weights costs as much as the arithmetic of so many rows.
# Rather too many: what is wrongly thought cheap is tried once and known, the opposite never.
ROWS_OF_A_PASS = 16
FIRST_RATE, LAST_RATE = 0.5, 0.1  # how much a measurement counts, of the first ones and later
FORGETTING_RATE = 1 / 1000  # of what other numbers of rows cost, with each step
MOST_SURPRISE = 0.5  # of what was expected; a step that took far longer was disturbed


class StepCosts:
    """Seconds of a step as a function of its rows."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._seen = [0] * len(NODES)

    @property
    def are_known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._seconds)

    def seconds(self, rows: int) -> float:
        """What a step of so many rows is expected to take."""
        left = bisect_right(NODES, rows) - 1
        below = self._seconds[left]
        share = (rows - NODES[left]) / (NODES[left + 1] - NODES[left])
        return below + share * max(0.0, self._seconds[left + 1] - below)

    def note(self, rows: int, seconds: float) -> None:
        """Learn from a step that was run."""
        if not self._seconds:
            expected = ROWS_OF_A_PASS + rows
            self._seconds = [seconds * (ROWS_OF_A_PASS + n) / expected for n in NODES]
            return
        left = bisect_right(NODES, rows) - 1
        share = (rows - NODES[left]) / (NODES[left + 1] - NODES[left])
        expected_s = (1 - share) * self._seconds[left] + share * self._seconds[left + 1]
        most = MOST_SURPRISE * expected_s
        error = max(-most, min(most, seconds - expected_s))
        norm = (1 - share) ** 2 + share**2
        for node, weight in ((left, 1 - share), (left + 1, share)):
            if weight:
                self._seen[node] += 1
                rate = max(LAST_RATE, FIRST_RATE / self._seen[node])
                self._seconds[node] += rate * error * weight / norm
        self._forget(left)

    def _forget(self, measured: int) -> None:
        """Let what was not measured for long come back to what would be worth another try."""
        unit = self._seconds[measured] / (ROWS_OF_A_PASS + NODES[measured])
        for node in range(measured + 2, len(NODES)):
            hoped = unit * (ROWS_OF_A_PASS + NODES[node])
            self._seconds[node] += FORGETTING_RATE * (hoped - self._seconds[node])
