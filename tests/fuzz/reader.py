"""What targets share: the bytes of a fuzzer as numbers and texts, and which errors are answers."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def accept(error: Exception, name: str = "") -> None:
    """An error of the documented kind is an answer, if it says something: where, for one."""
    assert str(error), "an error that says nothing"
    assert name in str(error), f"an error that does not name {name}: {error}"


class Reader:
    """Takes choices from the front of some bytes; zeros follow the last of them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_empty(self) -> bool:
        return self._at >= len(self._data)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def below(self, n: int) -> int:
        """A number from 0 to n - 1, of one byte while n fits in one."""
        value = self.byte()
        if n > 256:
            value |= self.byte() << 8
        return value % n

    def choice(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def rest(self) -> bytes:
        found = self._data[self._at :]
        self._at = len(self._data)
        return found

    def text(self) -> str:
        """What is left, as text; bytes that are no UTF-8 become lone surrogates."""
        return self.rest().decode("utf-8", "surrogateescape")
