"""Answers that are kept for their clients, to be read again and to go on from; bounded."""

import threading
from collections import OrderedDict
from typing import NamedTuple

from lanewise.settings import Settings


class Stored(NamedTuple):
    """An answer, and the whole conversation before it, as JSON."""

    response: bytes
    items: tuple[bytes, ...]  # lists of some each
    n_items: int = 0  # of both, with the parts of their contents
    parsed_bytes: int = 0  # that all of them take as objects
    n_bytes: int = 0  # the same with the messages that are made of them

    @property
    def size(self) -> int:
        """What it takes, in bytes."""
        return len(self.response) + sum(map(len, self.items))


class ResponseStore:
    """The latest answers of each API key, in memory; who keeps most loses its oldest first.

    Threads may share it.
    """

    def __init__(
        self,
        most_bytes: int = Settings.response_store_bytes,
        most: int = Settings.max_stored_responses,
    ) -> None:
        self._most_bytes, self._most = most_bytes, most
        self._lock = threading.Lock()
        self._of: dict[int, OrderedDict[str, Stored]] = {}  # by key
        self._bytes: dict[int, int] = {}  # of each key

    @property
    def keeps_any(self) -> bool:
        """Whether it was made to."""
        return self._most_bytes > 0 and self._most > 0

    @property
    def bytes(self) -> int:
        """Of all answers."""
        return sum(self._bytes.values())

    def put(self, key: int, name: str, stored: Stored) -> None:
        """Keep an answer, unless it alone is more than may be kept."""
        if stored.size > self._most_bytes or not self.keeps_any:
            return
        with self._lock:
            self._of.setdefault(key, OrderedDict())[name] = stored
            self._bytes[key] = self._bytes.get(key, 0) + stored.size
            while self.bytes > self._most_bytes:
                self._forget_oldest(max(self._of, key=lambda one: self._bytes[one]))
            while sum(map(len, self._of.values())) > self._most:
                self._forget_oldest(max(self._of, key=lambda one: len(self._of[one])))

    def get(self, key: int, name: str) -> Stored | None:
        """An answer, if it was the key's and is still there."""
        with self._lock:
            if name not in self._of.get(key, ()):
                return None
            self._of[key].move_to_end(name)
            return self._of[key][name]

    def delete(self, key: int, name: str) -> bool:
        """Keep it no longer; whether it was there."""
        with self._lock:
            if name not in self._of.get(key, ()):
                return False
            self._forget(key, name)
            return True

    def _forget_oldest(self, key: int) -> None:
        self._forget(key, next(iter(self._of[key])))

    def _forget(self, key: int, name: str) -> None:
        self._bytes[key] -= self._of[key].pop(name).size
        if not self._of[key]:
            del self._of[key], self._bytes[key]
