"""What a store keeps: blocks of the KV cache and snapshots of states, each under a name."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple, Protocol

from lanewise.engine.base.block_pool import BlockPool, Key
from lanewise.engine.base.runner import BlockRunner
from lanewise.engine.base.snapshots import Snapshots

REMOTE = ("written", "read", "missed", "failed")
REMOTE_BYTES = ("written", "read")  # each with ``bytes_`` before it
STATE = b"state"  # before the key of a snapshot: no key of a block is as long as both


class Files(Protocol):
    """The store: ``lanewise.store.block_files.BlockFiles``, or a fake in tests."""

    def has(self, name: bytes) -> bool:
        """Whether something is there, without waiting for a disk."""

    def read(self, name: bytes, into: bytearray) -> bool:
        """Read it; false if it is not there, or not right."""

    def write(self, name: bytes, data: bytearray) -> None:
        """Write it; OSError if that cannot be done."""

    def look(self) -> None:
        """See what other processes have added and removed."""

    def is_near(self, name: bytes) -> bool:
        """Whether reading it asks nothing of a network."""

    def expect(self, names: Sequence[bytes]) -> None:
        """These are going to be read, in this order, and nothing that was expected before."""

    def take_remote_counts(self) -> Mapping[str, int]:
        """What a bucket has done since the last call, by ``REMOTE`` and ``REMOTE_BYTES``."""

    def tell(self, call: Callable[[], None]) -> None:
        """Have ``call`` made, by any thread, whenever there are new remote counts."""

    def close(self) -> None:
        """End what the store runs."""


class Memory(NamedTuple):
    """Where blocks and snapshots are while the server runs."""

    runner: BlockRunner
    pool: BlockPool
    snapshots: Snapshots
    post: Callable[[Callable[[], None]], None]  # has a call made by the engine's thread


@dataclass(slots=True)
class StoreCounts:
    """What was done since the counts were last taken."""

    written: int = 0  # blocks
    read: int = 0
    missed: int = 0  # not there any more, or not right; snapshots too
    failed: int = 0  # could not be written; snapshots too
    states_written: int = 0
    states_read: int = 0
    read_s: float = 0.0
    saved_s: float = 0.0  # what computing would have taken, without the time of reading
    remote: Mapping[str, int] = field(default_factory=dict)

    def take(self) -> "StoreCounts":
        """The counts so far; they begin again at 0."""
        taken, new = replace(self), StoreCounts()
        for one in fields(self):
            setattr(self, one.name, getattr(new, one.name))
        return taken


@dataclass(frozen=True, slots=True)
class Part:
    """A block, or the place of a snapshot, and the name that the store has for it."""

    name: bytes
    place: int
    is_state: bool = False


def name_of_state(key: Key) -> bytes:
    """The name of the snapshot at the end of the block with this key."""
    return STATE + key


class Carrier:
    """Carries parts between memory and store; each thread that calls it has buffers of its own."""

    def __init__(self, memory: Memory) -> None:
        self._runner = memory.runner
        self._buffers = threading.local()

    def write(self, files: Files, part: Part) -> None:
        """Memory to store; OSError if that cannot be done."""
        data = self._buffer(is_state=part.is_state)
        if part.is_state:
            self._runner.read_state(part.place, data)
        else:
            self._runner.read_block(part.place, data)
        files.write(part.name, data)

    def read(self, files: Files, part: Part) -> bool:
        """Store to memory; false if the store does not have it."""
        data = self._buffer(is_state=part.is_state)
        if not files.read(part.name, data):
            return False
        if part.is_state:
            self._runner.write_state(part.place, data)
        else:
            self._runner.write_block(part.place, data)
        return True

    def _buffer(self, *, is_state: bool) -> bytearray:
        kind = "state" if is_state else "block"
        data: bytearray | None = getattr(self._buffers, kind, None)
        if data is None:
            data = bytearray(self._runner.state_bytes if is_state else self._runner.block_bytes)
            setattr(self._buffers, kind, data)
        return data
