"""LoRA adapters by name: which are loaded, which are in use, and when their memory is freed."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lanewise.engine.base.stream import EngineError
from lanewise.runtime import Adapter


class AdapterError(Exception):
    """An adapter cannot be loaded; the message says why."""


class AdapterFileError(AdapterError):
    """The adapter's files cannot be used; the message may quote from them."""


class UnknownAdapterError(AdapterError):
    """No adapter has this name."""


class AdapterGoneError(EngineError):
    """The adapter was unloaded after its name had been looked up."""


_numbers = itertools.count(1)


class LoadedAdapter:
    """One adapter in memory, freed after it was unloaded and its last sequence released it.

    Sequences acquire it on event loops and release it on the engine's thread, between two steps.
    """

    def __init__(self, name: str, path: str, weights: Adapter) -> None:
        self.name = name
        self.path = path
        self.weights = weights
        self.created = int(time.time())
        self.number = next(_numbers)
        # A new adapter of the same name must not find the old one's cached blocks, and after a
        # restart the same adapter must find its own.
        self.cache_key = weights.digest
        self._lock = threading.Lock()
        self._users = 0
        self._retired = False

    def acquire(self, users: int) -> None:
        """Hold the adapter for some sequences, or raise AdapterGoneError."""
        with self._lock:
            if self._retired:
                raise AdapterGoneError(f"the model {self.name!r} was unloaded")
            self._users += users

    def keep(self) -> None:
        """Add a reference to an adapter that is held already."""
        with self._lock:
            self._users += 1

    def release(self, users: int = 1) -> None:
        """Drop the references of some sequences."""
        with self._lock:
            self._users -= users
            is_free = self._retired and self._users == 0
        if is_free:
            self.weights.close()

    def retire(self) -> None:
        """Refuse new users; free it now, or when the last user releases it."""
        with self._lock:
            is_free = not self._retired and self._users == 0
            self._retired = True
        if is_free:
            self.weights.close()

    @property
    def is_in_memory(self) -> bool:
        """Whether its weights are in memory: loaded, or unloaded and still in use."""
        return not self._retired or self._users > 0


@contextmanager
def holding(adapter: LoadedAdapter | None, users: int) -> Iterator[None]:
    """Acquire an adapter for some sequences; release it again if the block raises."""
    if adapter is None:
        yield
        return
    adapter.acquire(users)
    try:
        yield
    except BaseException:
        adapter.release(users)
        raise


class Adapters:
    """The adapters of one model: at most ``limit`` in memory, unloaded ones in use included."""

    def __init__(self, load: Callable[[str], Adapter], limit: int) -> None:
        self._load = load
        self.limit = limit
        self._lock = threading.Lock()
        self._by_name: dict[str, LoadedAdapter] = {}
        self._loading: set[str] = set()
        self._leaving: list[LoadedAdapter] = []  # unloaded, perhaps still in use

    def find(self, name: str) -> LoadedAdapter | None:
        """The adapter of this name."""
        return self._by_name.get(name)

    def all(self) -> list[LoadedAdapter]:
        """The adapters that requests may name, in the order they were loaded."""
        return list(self._by_name.values())

    def load(self, name: str, path: str) -> LoadedAdapter:
        """Load the adapter at ``path`` under an unused name; AdapterError if refused. Slow."""
        with self._lock:
            if name in self._by_name or name in self._loading:
                raise AdapterError(f"the adapter {name!r} has already been loaded")
            self._leaving = [one for one in self._leaving if one.is_in_memory]
            there = len(self._by_name) + len(self._loading) + len(self._leaving)
            if there >= self.limit:
                leaving = f", {len(self._leaving)} of them still in use" if self._leaving else ""
                raise AdapterError(
                    f"{there} adapters are in memory{leaving}; accepted: at most max_loras ="
                    f" {self.limit}"
                )
            self._loading.add(name)
        try:
            loaded = LoadedAdapter(name, path, self._load(path))
            with self._lock:
                self._by_name[name] = loaded
        finally:
            with self._lock:
                self._loading.discard(name)
        return loaded

    def unload(self, name: str) -> None:
        """Unload: new requests cannot name it, running ones finish with it. UnknownAdapterError."""
        with self._lock:
            if name not in self._by_name:
                raise UnknownAdapterError(f"the adapter {name!r} is not loaded")
            gone = self._by_name.pop(name)
            self._leaving.append(gone)
        gone.retire()

    def close(self) -> None:
        """Unload all adapters."""
        for adapter in self.all():
            self.unload(adapter.name)
