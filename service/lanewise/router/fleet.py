"""Which models are in memory: loaded when asked for, gone when idle or when others need the room.

A model that answers, or that requests wait for, is never unloaded for another. So models cannot
take turns for nothing: each that was loaded answers what it was loaded for.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress

from lanewise.host import format_size
from lanewise.router.entries import Catalogue, Entry
from lanewise.router.process import KILL_AFTER_S, Child, Launcher, LoadError

logger = logging.getLogger(__name__)

LOOK_S = 0.5  # between two looks for models that have been idle
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # after failures, before the next start


class BusyError(Exception):
    """A model that cannot be had now; ``after_s`` says when to ask again."""

    def __init__(self, message: str, after_s: float, *, is_full: bool = False) -> None:
        super().__init__(message)
        self.after_s, self.is_full = after_s, is_full


class Slot:
    """A model of the catalogue, and its process if it has one."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.child: Child | None = None  # that answers
        self.answering = self.waiting = 0
        self.used_at = 0.0
        self.failures, self.retry_at, self.failure = 0, 0.0, ""
        self.loading: asyncio.Task[None] | None = None
        self.planned: tuple[int, dict[str, object]] | None = None
        self.card: dict[str, object] = {}  # what its server said of it in /v1/models

    @property
    def state(self) -> str:
        """In the words of llama.cpp's router."""
        if self.child is not None:
            return "loaded"
        return "loading" if self.loading is not None else "unloaded"

    @property
    def is_busy(self) -> bool:
        """Whether a request has it or waits for it."""
        return self.answering + self.waiting > 0


class Fleet:
    """All models, within one budget of memory."""

    def __init__(self, catalogue: Catalogue, launcher: Launcher, budget: int) -> None:
        self.catalogue, self.budget = catalogue, budget
        self.slots = {entry.name: Slot(entry) for entry in catalogue.entries}
        self._launcher = launcher
        self._room = asyncio.Lock()  # loads take their memory one after the other
        self._freed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._children: dict[Child, int] = {}  # with bytes of the budget
        self._begun = 0  # bytes of loads whose process is not there yet

    def find(self, name: str | None) -> Slot | None:
        """The model that is called so; for None the one for requests that name none."""
        entry = self.catalogue.by_name.get(name or self.catalogue.default or "")
        return None if entry is None else self.slots[entry.name]

    def start(self) -> None:
        """Load what is pinned, and look after the rest."""
        self._spawn(self._look_for_idle())
        for slot in self.slots.values():
            if slot.entry.pinned:
                self._spawn(self._keep(slot))

    @asynccontextmanager
    async def using(self, slot: Slot) -> AsyncIterator[Child]:
        """The model's server, which stays for as long; BusyError or LoadError if there is none."""
        child = slot.child or await self._wait_for(slot)
        slot.answering += 1
        try:
            yield child
        finally:
            slot.answering -= 1
            slot.used_at = time.monotonic()
            self._freed.set()

    async def load(self, slot: Slot) -> None:
        """Load it if it is not there; BusyError or LoadError if that cannot be."""
        if slot.child is None:
            await self._wait_for(slot)
            slot.used_at = time.monotonic()

    async def unload(self, slot: Slot) -> None:
        """End its process, which may finish its answers first."""
        child = slot.child
        if child is None:
            return
        slot.child = None  # what comes now waits for the next one
        logger.info("%s is unloaded", slot.entry.name)
        await child.stop(self._launcher.drain_s + KILL_AFTER_S)

    async def close(self) -> None:
        """End all processes, and what looks after them."""
        self._is_closing = True
        loading = [slot.loading for slot in self.slots.values() if slot.loading is not None]
        for task in (*self._tasks, *loading):
            task.cancel()
        await asyncio.gather(*self._tasks, *loading, return_exceptions=True)
        await asyncio.gather(*(self.unload(slot) for slot in self.slots.values()))

    async def _wait_for(self, slot: Slot) -> Child:
        if slot.waiting >= self.catalogue.max_waiting:
            most = f"{self.catalogue.max_waiting} requests wait for {slot.entry.name} to load"
            raise BusyError(f"{most}, which is the most (max_waiting)", 5.0, is_full=True)
        slot.waiting += 1
        try:
            while slot.child is None:
                if slot.loading is None:
                    slot.loading = asyncio.create_task(self._load(slot))
                    # All that wait may have left by the time it fails.
                    slot.loading.add_done_callback(lambda one: one.cancelled() or one.exception())
                # One that leaves does not take the load from the others.
                await asyncio.shield(slot.loading)
            return slot.child
        finally:
            slot.waiting -= 1
            self._freed.set()

    async def _load(self, slot: Slot) -> None:
        try:
            self._check_pause(slot)
            n_bytes, settings = await self._plan(slot)
            async with self._room:
                await self._make_room(slot, n_bytes)
                self._begun += n_bytes
            await self._start(slot, n_bytes, settings)
        except LoadError as error:
            self._fail(slot, str(error))
            raise
        finally:
            slot.loading = None

    def _check_pause(self, slot: Slot) -> None:
        left = slot.retry_at - time.monotonic()
        if self._is_closing or left > 0:
            why = "the server is shutting down" if self._is_closing else slot.failure
            raise BusyError(f"{slot.entry.name} is not there: {why}", max(left, 1.0))

    async def _plan(self, slot: Slot) -> tuple[int, dict[str, object]]:
        if slot.planned is None:
            try:
                slot.planned = await self._launcher.plan(slot.entry, self.budget)
            except OSError as error:
                raise LoadError(f"it cannot be planned: {error.strerror or error}") from None
        planned, n_bytes = slot.planned, slot.planned[0]
        if n_bytes > self.budget:
            slot.planned = None  # another file may lie there next time
            raise LoadError(
                f"it takes {format_size(n_bytes)}; accepted: at most {format_size(self.budget)},"
                " the memory of all models (memory)"
            )
        return planned

    async def _make_room(self, slot: Slot, n_bytes: int) -> None:
        """Unload what has been idle for the longest until the model fits; BusyError if it does not.

        Given up too when no request waits for it any more.
        """
        deadline = time.monotonic() + self.catalogue.wait_s
        while self._used_bytes() + n_bytes > self.budget:
            self._freed.clear()
            idle = [
                one
                for one in self.slots.values()
                if one.child is not None and not one.is_busy and not one.entry.pinned
            ]
            if idle:
                await self.unload(min(idle, key=lambda one: one.used_at))
                continue
            if not slot.waiting:
                raise BusyError(f"no request waits for {slot.entry.name} any more", 1.0)
            if (left := deadline - time.monotonic()) <= 0:
                raise BusyError(
                    f"{slot.entry.name} needs {format_size(n_bytes)} of memory, which models have"
                    f" that answer; none of it came free within {self.catalogue.wait_s:g} s"
                    " (wait_s)",
                    5.0,
                )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._freed.wait(), left)

    def _used_bytes(self) -> int:
        living = (size for child, size in self._children.items() if not child.ended.done())
        return self._begun + sum(living)

    async def _start(self, slot: Slot, n_bytes: int, settings: dict[str, object]) -> None:
        began = time.monotonic()
        try:
            child = await self._launcher.start(slot.entry, settings)
            self._children[child] = n_bytes
        except OSError as error:
            raise LoadError(f"no process can be started: {error.strerror or error}") from None
        finally:
            self._begun -= n_bytes
        self._spawn(self._free_after(slot, child))
        try:
            await child.wait_until_ready(self.catalogue.load_s)
        except BaseException:
            await child.stop(KILL_AFTER_S)
            raise
        slot.child, slot.used_at, slot.failure = child, time.monotonic(), ""
        seconds = time.monotonic() - began
        logger.info("%s is loaded, %.2f s after its start", slot.entry.name, seconds)

    async def _free_after(self, slot: Slot, child: Child) -> None:
        """Give its memory back when the process has ended, whatever ended it."""
        reason = await asyncio.shield(child.ended)
        del self._children[child]
        if slot.child is child:
            slot.child = None
            self._fail(slot, reason)
            if slot.entry.pinned:
                self._spawn(self._keep(slot))
        self._freed.set()

    def _fail(self, slot: Slot, reason: str) -> None:
        now = time.monotonic()
        if now - slot.used_at > LONGEST_PAUSE_S:
            slot.failures = 0
        pause = min(FIRST_PAUSE_S * 2**slot.failures, LONGEST_PAUSE_S)
        slot.failures += 1
        slot.failure, slot.retry_at = reason, now + pause
        logger.warning(
            "%s: %s; started again in %g s at the soonest", slot.entry.name, reason, pause
        )

    async def _keep(self, slot: Slot) -> None:
        """Load a pinned model, however often that fails."""
        while slot.child is None and not self._is_closing:
            await asyncio.sleep(max(0.0, slot.retry_at - time.monotonic()))
            with suppress(LoadError, BusyError):
                await self.load(slot)
                return
            await asyncio.sleep(FIRST_PAUSE_S)

    async def _look_for_idle(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for slot in self.slots.values():
                may_go = slot.child is not None and not slot.is_busy and not slot.entry.pinned
                idle = time.monotonic() - slot.used_at
                if may_go and 0 < slot.entry.idle_s <= idle:
                    self._spawn(self.unload(slot))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
