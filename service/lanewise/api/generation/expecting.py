"""What a client expects an answer to be, and how much of that comes true."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from lanewise.api.generation.ask import Ask
from lanewise.api.generation.call import Call
from lanewise.api.generation.measuring import check_size
from lanewise.text.pieces import Bounds

ALIKE = 3  # tokens in a row by which an answer is found again in what was expected


def expected_tokens(call: Call[Ask]) -> list[int]:
    """The tokens of the text that an answer is expected to be."""
    text, limit = call.ask.expected or "", call.state.max_model_len
    check_size(len(text), limit, "prediction")
    return call.state.tokenizer.encode_behind(text, Bounds(most=limit, room=call.hold))


class Expectation:
    """The tokens that are expected, and where each run of ``ALIKE`` of them ends."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self.ends: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for end in range(ALIKE, len(tokens) + 1):
            self.ends[tuple(tokens[end - ALIKE : end])].append(end)

    def follower(self) -> "Follower":
        """One that has seen nothing of an answer."""
        return Follower(self)


class Follower:
    """Follows one answer, and counts the expected tokens that appear in it, in their order."""

    def __init__(self, expectation: Expectation) -> None:
        self._expectation = expectation
        self._next = 0  # the first that has not appeared and has not been passed over
        self._last: tuple[int, ...] = ()  # tokens of the answer
        self._n_new = 0  # of them that were not expected

    def push(self, token: int) -> int:
        """How many of the expected tokens have appeared with this one."""
        tokens, place = self._expectation.tokens, self._next
        self._last = (*self._last, token)[-ALIKE:]
        if place < len(tokens) and tokens[place] == token:
            self._next, self._n_new = place + 1, 0
            return 1
        self._n_new = min(self._n_new + 1, ALIKE)
        ends = self._expectation.ends.get(self._last, ())
        found = bisect_left(ends, place + self._n_new)
        if found == len(ends):
            return 0
        count, self._next, self._n_new = self._n_new, ends[found], 0
        return count
