"""Which models are in memory: loaded when asked for, gone when idle or when others need the room.

A model that answers is never unloaded for another, and one that was loaded answers what waited for
it. Where more models are busy than fit they take turns: one that has had its turn takes no more
requests, and goes when its answers are written. A turn lasts several times as long as the load
before it, so that loads take a small part of the time.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress

from lanewise.api.generation.body import LATEST
from lanewise.host import format_size
from lanewise.router.entries import Catalogue, Entry
from lanewise.router.process import KILL_AFTER_S, Child, Launcher, LoadError
from lanewise.router.shares import Shares
from lanewise.router.slot import Slot

logger = logging.getLogger(__name__)

LOOK_S = 0.5  # between two looks at all models: idle for long, larger than allowed
TURN, LEAST_TURN_S = 4.0, 1.0  # times its load, and at least so long, a busy model keeps its place
RESERVED = 1 / 8  # of the places of those that wait, for every key whatever others have taken
MAX_PULLED = 64  # models that requests named
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # after failures, before the next start


class BusyError(Exception):
    """A model that cannot be had now; ``after_s`` says when to ask again."""

    def __init__(self, message: str, after_s: float, *, is_full: bool = False) -> None:
        super().__init__(message)
        self.after_s, self.is_full = after_s, is_full


class Fleet:
    """All models, within one budget of memory."""

    def __init__(self, catalogue: Catalogue, launcher: Launcher, budget: int) -> None:
        self.catalogue, self.budget = catalogue, budget
        self.slots: dict[str, Slot] = {}
        self._by_name: dict[str, Slot] = {}
        for entry in catalogue.entries:
            self._add(entry)
        self._launcher = launcher
        self._room = asyncio.Lock()  # loads take their memory one after the other
        self._freed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._children: dict[Child, int] = {}  # with bytes of the budget
        self._begun = 0  # bytes of loads whose process is not there yet
        self._change = asyncio.Event()
        self._shares = Shares()

    @property
    def names(self) -> list[str]:
        """All that lists show: of the hub's models one name each."""
        return [name for slot in self.slots.values() for name in slot.names]

    @property
    def change(self) -> asyncio.Event:
        """Set as soon as a model has another state; take it before the states are read."""
        return self._change

    def find(self, name: str | None) -> Slot | None:
        """The model that a request calls so, as servers of one model read names.

        Without a name the one for such requests. One of the hub becomes known by its name where
        the operator allows that; BusyError if too many are.
        """
        if not name:
            return self._by_name.get(self.catalogue.default or "")
        bare = name.removesuffix(LATEST)
        tried = (name, bare, name + LATEST)
        found = next((slot for one in tried if (slot := self._by_name.get(one))), None)
        return found or self._pulled(bare)

    def _pulled(self, name: str) -> Slot | None:
        entry = self.catalogue.pulled(name)
        if entry is None or entry.name in self._by_name:
            return None if entry is None else self._by_name[entry.name]
        known = [slot for slot in self.slots.values() if slot.entry.is_pulled]
        if len(known) >= MAX_PULLED:
            free = [slot for slot in known if slot.state == "unloaded" and not slot.is_busy]
            if not free:
                most = f"{MAX_PULLED} models of the hub are in use, which is the most"
                raise BusyError(most, 5.0, is_full=True)
            self._remove(min(free, key=lambda one: one.used_at))
        return self._add(entry)

    def _add(self, entry: Entry) -> Slot:
        slot = self.slots[entry.name] = Slot(entry)
        for name in entry.names:
            self._by_name.setdefault(name, slot)
        return slot

    def _remove(self, slot: Slot) -> None:
        del self.slots[slot.entry.name]
        self._by_name = {name: one for name, one in self._by_name.items() if one is not slot}

    def tell(self) -> None:
        """Wake all that wait for a change."""
        self._change.set()
        self._change = asyncio.Event()

    def start(self) -> None:
        """Load what is pinned, and look after the rest."""
        self._spawn(self._look_after())
        self._spawn(self._launcher.prepare())
        for slot in self.slots.values():
            if slot.entry.pinned:
                self._spawn(self._keep(slot))

    @asynccontextmanager
    async def using(self, slot: Slot, key: int = 0) -> AsyncIterator[Child]:
        """The model's server, which stays for as long; BusyError or LoadError if there is none."""
        child = slot.child
        if child is None or slot.is_leaving:
            child = await self._wait_for(slot, key)
        slot.answers[key] += 1
        slot.has_answered = True
        try:
            yield child
        finally:
            slot.answers[key] -= 1
            slot.answers += Counter()  # without the keys that have none
            slot.used_at = time.monotonic()
            self._freed.set()

    async def load(self, slot: Slot) -> None:
        """Load it if it is not there; BusyError or LoadError if that cannot be."""
        if slot.child is None:
            slot.is_asked_to_load = True
            await self._wait_for(slot, 0)
            slot.used_at = time.monotonic()

    async def unload(self, slot: Slot) -> None:
        """End its process, which may finish its answers first."""
        child = slot.child
        if child is None:
            return
        slot.child = None  # what comes now waits for the next one
        slot.stays_s, slot.is_leaving = None, False
        self.tell()
        logger.info("%s is unloaded", slot.entry.name)
        await child.stop(self._launcher.drain_s + KILL_AFTER_S)

    async def close(self) -> None:
        """End all processes, and what looks after them."""
        self._is_closing = True
        loading = [slot.loading for slot in self.slots.values() if slot.loading is not None]
        for task in (*self._tasks, *loading):
            task.cancel()
        await asyncio.gather(*self._tasks, *loading, return_exceptions=True)
        await asyncio.gather(
            self._launcher.close(), *(self.unload(slot) for slot in self.slots.values())
        )

    async def _wait_for(self, slot: Slot, key: int) -> Child:
        most = self.catalogue.max_waiting
        if slot.waiting >= most and slot.waits[key] + 1 > RESERVED * most:
            said = f"{slot.waiting} requests wait for {slot.entry.name} to load"
            raise BusyError(f"{said}; the limit is {most} (max_waiting)", 5.0, is_full=True)
        slot.waits[key] += 1
        try:
            while slot.child is None or slot.is_leaving:
                if slot.child is not None:
                    await self.change.wait()
                    continue
                if slot.loading is None:
                    slot.loading = asyncio.create_task(self._load(slot))
                    self.tell()
                    # All that wait may have left by the time it fails.
                    slot.loading.add_done_callback(lambda one: one.cancelled() or one.exception())
                # One that leaves does not take the load from the others.
                await asyncio.shield(slot.loading)
            return slot.child
        finally:
            slot.waits[key] -= 1
            slot.waits += Counter()  # without the keys that have none
            self._freed.set()

    async def _load(self, slot: Slot) -> None:
        try:
            self._check_pause(slot)
            n_bytes, settings = await self._plan(slot)
            # What takes little memory is done while another model goes.
            opening = asyncio.create_task(self._launcher.open(slot.entry, settings))
            opening.add_done_callback(lambda one: one.cancelled() or one.exception())
            async with self._room:
                await self._make_room(slot, n_bytes)
                self._begun += n_bytes
            await self._start(slot, n_bytes, settings)
        except LoadError as error:
            self._fail(slot, str(error))
            raise
        finally:
            slot.loading, slot.is_asked_to_load = None, False
            self.tell()

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
        try:
            while self._used_bytes() + n_bytes + sum(self._kept_idle.values()) > self.budget:
                self._freed.clear()
                if self._used_bytes() + n_bytes <= self.budget:
                    await self._launcher.let_go(min(self._kept_idle, key=self._last_used))
                    continue
                if going := [one for one in self._movable if one.may_go]:
                    await self.unload(min(going, key=lambda one: one.used_at))
                    continue
                if not slot.waiting:
                    raise BusyError(f"no request waits for {slot.entry.name} any more", 1.0)
                if (left := deadline - time.monotonic()) <= 0:
                    raise BusyError(
                        f"{slot.entry.name} needs {format_size(n_bytes)} of memory, which models"
                        f" have that answer; none of it came free within {self.catalogue.wait_s:g}"
                        " s (wait_s)",
                        5.0,
                    )
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._freed.wait(), min(left, self._next_turn()))
        finally:
            for one in self._movable:
                one.is_leaving = False
            self.tell()  # what waits for one that stays goes on

    @property
    def _movable(self) -> list[Slot]:
        return [one for one in self.slots.values() if one.child and not one.entry.pinned]

    def _next_turn(self) -> float:
        """Have the model leave whose turn is over for the longest, one at a time.

        Seconds until there may be another.
        """
        now, most = time.monotonic(), self.catalogue.wait_s / 2
        ends = {
            one: one.loaded_at + min(max(TURN * one.load_s, LEAST_TURN_S), most)
            for one in self._movable
            if one.has_answered  # or it was loaded for nothing
        }
        if not ends or any(one.is_leaving for one in ends):
            return math.inf
        first = min(ends, key=lambda one: ends[one])
        first.is_leaving = ends[first] <= now
        return math.inf if first.is_leaving else ends[first] - now

    def _used_bytes(self) -> int:
        living = (size for child, size in self._children.items() if not child.ended.done())
        return self._begun + sum(living)

    @property
    def _kept_idle(self) -> dict[str, int]:
        """Bytes of the files that are kept open, but for models that are there or will be."""
        states = {name: slot.state for name, slot in self.slots.items()}
        kept = self._launcher.kept.items()
        return {name: size for name, size in kept if states.get(name, "unloaded") == "unloaded"}

    def _last_used(self, name: str) -> float:
        slot = self.slots.get(name)
        return slot.used_at if slot is not None else 0.0

    async def _start(self, slot: Slot, n_bytes: int, settings: dict[str, object]) -> None:
        began = time.monotonic()
        try:
            child = await self._launcher.start(
                slot.entry, settings, warms_up=slot.is_asked_to_load or not slot.waiting
            )
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
        slot.child, slot.failure, slot.has_answered = child, "", False
        slot.used_at = slot.loaded_at = time.monotonic()
        slot.load_s = slot.loaded_at - began
        logger.info("%s is loaded, %.2f s after its start", slot.entry.name, slot.load_s)

    async def _free_after(self, slot: Slot, child: Child) -> None:
        """Give its memory back when the process has ended, whatever ended it."""
        reason = await asyncio.shield(child.ended)
        del self._children[child]
        if slot.child is child:
            slot.child, slot.stays_s, slot.is_leaving = None, None, False
            self._fail(slot, reason)
            self.tell()
            if slot.entry.pinned:
                self._spawn(self._keep(slot))
        self._freed.set()

    def _fail(self, slot: Slot, reason: str) -> None:
        now = time.monotonic()
        if now - slot.used_at > LONGEST_PAUSE_S:
            slot.failures = 0
        pause = min(FIRST_PAUSE_S * 2**slot.failures, LONGEST_PAUSE_S)
        if slot.has_answered:  # what worked until now works again, most likely
            pause, slot.has_answered = 0.0, False
        else:
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

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._launcher.reap()
            slots = self.slots.values()
            self._shares.set({slot.child.pid: slot.answers for slot in slots if slot.child})
            for name in self._launcher.kept.keys() - self.slots.keys():
                self._spawn(self._launcher.let_go(name))
            for slot in self.slots.values():
                may_go = slot.child is not None and not slot.is_busy
                if may_go and time.monotonic() - slot.used_at >= slot.goes_after_s:
                    self._spawn(self.unload(slot))
                self._hold_to_limit(slot)

    def _hold_to_limit(self, slot: Slot) -> None:
        """End a process that takes more than the operator gave it, before it takes others'."""
        child, limit = slot.child, slot.entry.memory
        if child is not None and limit is not None and (taken := child.own_bytes) > limit:
            most = format_size(limit)
            child.end(f"it took {format_size(taken)} of memory; its limit is {most} (memory)")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
