"""A directory in front of a bucket: what is written goes to both, what is read comes from the first
that has it.

Writing to the bucket is done behind writing to the directory, by threads that give way to steps.
What could not be sent is sent after a later listing. What is read from the bucket is kept in the
directory too. Nothing here waits longer than ``bucket.REQUEST_S`` for one object.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Protocol, TypeVar

from lanewise.giving_way import give_way
from lanewise.store.block_files import ABOUT, SUFFIX, BlockFiles, path_of
from lanewise.store.bucket import BucketError, Pauses

logger = logging.getLogger(__name__)

FETCHERS, SENDERS = 16, 4  # objects at a time
AHEAD = 32  # most objects that are fetched before they are asked for
AHEAD_BYTES = 64 << 20  # and most bytes of them
LARGE = 16 << 20  # bytes: objects as large are sent one at a time
LIST_S = 30.0  # least seconds between two listings
LIST_SHARE = 20  # and at least so many times as long as the last one took
MOST_NAMES = 500_000  # of objects that are known to be in the bucket
FLUSH_S = 2.0  # what is not sent when the server stops gets so long


Answer = TypeVar("Answer")


class Objects(Protocol):
    """``lanewise.store.bucket.Bucket``, or a fake in tests."""

    def names(self, folder: str) -> Iterator[str]:
        """The paths of all objects in a folder."""

    def get(self, path: str) -> bytes | None:
        """An object's contents."""

    def put(self, path: str, data: bytes) -> None:
        """Write an object."""


class TieredFiles:
    """Blocks and snapshots of one model in a directory and in a bucket; any thread may call it."""

    def __init__(self, near: BlockFiles, far: Objects) -> None:
        """Begin to list the bucket."""
        self._near, self._bucket = near, far
        self._folder = near.folder.name
        self._lock = threading.Lock()
        self._far: set[str] = set()  # names of what is in the bucket
        self._sending: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._told: Callable[[], None] = lambda: None
        self._pauses = Pauses()
        self._coming: dict[bytes, Future[bytes | None]] = {}
        self._awaited: deque[bytes] = deque()
        self._ahead = FETCHERS  # objects, until the size of one is known
        self._sending_large = threading.Lock()
        self._is_told = False  # whether the bucket has what says which model this is
        self._list_at = float("inf")  # by time.monotonic(), once the one that begins now has ended
        self._ends_at = float("inf")
        self._fetchers = ThreadPoolExecutor(FETCHERS, "lanewise-store-fetch")
        self._senders = ThreadPoolExecutor(SENDERS, "lanewise-store-send", give_way)
        self._senders.submit(self._list)

    def has(self, key: bytes) -> bool:
        """As ``BlockFiles.has``, of both."""
        return self._near.has(key) or (
            not self._pauses.is_paused and self._near.name_of(key) in self._far
        )

    def is_near(self, key: bytes) -> bool:
        """Whether reading it asks nothing of the bucket."""
        return self._near.has(key)

    def look(self) -> None:
        """As ``BlockFiles.look``; the bucket is listed behind it, less often."""
        self._near.look()
        if time.monotonic() > self._list_at:
            self._list_at = float("inf")
            self._senders.submit(self._list)

    def expect(self, keys: Sequence[bytes]) -> None:
        """Begin to fetch what will be read, in this order; what was expected before is not."""
        with self._lock:
            self._awaited = deque(key for key in keys if not self._near.has(key))
            dropped, self._coming = self._coming, {}
        for future in dropped.values():
            future.cancel()
        self._fetch_ahead()

    def read(self, key: bytes, into: bytearray) -> bool:
        """As ``BlockFiles.read``."""
        if self._near.has(key) and self._near.read(key, into):
            return True
        with self._lock:
            coming = self._coming.pop(key, None)
        data = self._fetch(key) if coming is None else coming.result()
        self._fetch_ahead()
        if data is None:
            return False
        self._ahead = max(2, min(AHEAD, AHEAD_BYTES // len(into)))
        if not self._near.unpack(key, data, into):
            self._note("missed")
            self._forget(key)
            return False
        self._note("read", bytes_read=len(data))
        with suppress(OSError):
            self._near.write(key, into)
        return True

    def write(self, key: bytes, data: bytearray) -> None:
        """As ``BlockFiles.write``; the bucket gets it later."""
        self._near.write(key, data)
        self._send_later(self._near.name_of(key))

    def take_remote_counts(self) -> Mapping[str, int]:
        """What the bucket has done since the last call, by the names of ``store_parts``."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts

    def tell(self, call: Callable[[], None]) -> None:
        """Have ``call`` made, by any thread, whenever there is something to count."""
        self._told = call

    def close(self) -> None:
        """End the threads; what was still to be sent gets a moment."""
        self.expect(())
        self._ends_at = time.monotonic() + FLUSH_S
        self._fetchers.shutdown(cancel_futures=True)
        self._senders.shutdown()

    def _fetch_ahead(self) -> None:
        with self._lock:
            while self._awaited and len(self._coming) < self._ahead:
                key = self._awaited.popleft()
                self._coming[key] = self._fetchers.submit(self._fetch, key)

    def _fetch(self, key: bytes) -> bytes | None:
        """An object; None if it is not there or the bucket fails."""
        path = f"{self._folder}/{path_of(self._near.name_of(key))}"
        data = self._asked(lambda: self._bucket.get(path))
        if data is None:
            self._forget(key)
        return data

    def _forget(self, key: bytes) -> None:
        with self._lock:
            self._far.discard(self._near.name_of(key))

    def _send_later(self, name: str) -> None:
        with self._lock:
            if name in self._far or name in self._sending:
                return
            self._sending.add(name)
        self._senders.submit(self._send, name)

    def _send(self, name: str) -> None:
        """On a thread that sends."""
        try:
            if time.monotonic() > self._ends_at:
                return
            is_large = self._near.n_bytes(name) >= LARGE
            with self._sending_large if is_large else nullcontext():
                data = self._near.raw(name)
                if data is not None and self._asked(lambda: self._put(path_of(name), data)):
                    with self._lock:
                        self._far.add(name)
                    self._note("written", bytes_written=len(data))
        finally:
            with self._lock:
                self._sending.discard(name)

    def _put(self, path: str, data: bytes) -> bool:
        self._bucket.put(f"{self._folder}/{path}", data)
        return True

    def _list(self) -> None:
        """On a thread that sends: what is in the bucket, and what it lacks is sent."""
        began = time.monotonic()
        names = self._asked(self._names)
        took_s = time.monotonic() - began
        self._list_at = time.monotonic() + max(LIST_S, LIST_SHARE * took_s)
        if names is None:
            return
        with self._lock:
            self._far = names
        about = b"" if self._is_told else self._near.about()
        if about:
            self._is_told = self._asked(lambda: self._put(ABOUT, about)) is not None
        for name in self._near.names() - names:
            self._send_later(name)

    def _names(self) -> set[str]:
        names: set[str] = set()
        for path in self._bucket.names(self._folder):
            if path.endswith(SUFFIX):
                names.add(path.rpartition("/")[2].removesuffix(SUFFIX))
            if len(names) == MOST_NAMES or time.monotonic() > self._ends_at:
                break
        return names

    def _asked(self, ask: Callable[[], Answer]) -> Answer | None:
        """What the bucket answers; None if it fails or is left alone."""
        if self._pauses.is_paused:
            return None
        try:
            answer = ask()
        except BucketError as error:
            self._note("failed")
            if pause_s := self._pauses.note_failure():
                logger.warning(
                    "kv_store_remote fails and is left alone for %g s: %s", pause_s, error
                )
            return None
        self._pauses.note_success()
        return answer

    def _note(self, what: str, **amounts: int) -> None:
        with self._lock:
            self._counts[what] += 1
            self._counts.update(amounts)
        self._told()
