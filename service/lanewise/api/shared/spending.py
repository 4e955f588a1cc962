"""What keys use: counted by minute, day and model, held against their limits, and kept.

A request counts when it comes, its tokens as they are read and written. So a key that has many
requests running has spent what they have come to so far. Minutes are those of the clock, days are
UTC's. Everything here runs on the event loop but the writing, which waits for the disk.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter

from lanewise.api.errors import RateLimitExceededError
from lanewise.api.generation.writing import utc_time
from lanewise.api.observing.caller import Caller
from lanewise.records.usage import Minute, Place, UsageStore, Used
from lanewise.settings import Limits

logger = logging.getLogger(__name__)

MINUTE_S, DAY_S = 60, 86400
WRITTEN_EVERY_S = 1.0  # so much may be forgotten when the process is killed
SAID_AGAIN_S = 60.0
LONG_WAIT_S = 60  # behind which a client gains nothing by waiting
KINDS = ("requests", "tokens")
ANTHROPIC = "/v1/messages"
NO_LIMITS = Limits()


class Left(NamedTuple):
    """What a limit leaves."""

    name: str  # of the setting
    limit: int
    left: int  # less than nothing if more was used
    reset_s: float  # until all of it is there again


@dataclass(slots=True)
class _Spent:
    """What one key has used, and its requests that are being answered."""

    minute: int = -1
    in_minute: Used = field(default_factory=Used)
    day: str = ""
    in_day: Used = field(default_factory=Used)
    callers: dict[int, Caller] = field(default_factory=dict)  # by their ids


class Spending:
    """Counts for all keys; one for each server."""

    def __init__(
        self,
        usual: Limits = NO_LIMITS,
        of_tenants: Mapping[str, Limits] | None = None,
        store: UsageStore | None = None,
        names: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``names`` are those of tenants; ``of_tenants`` have limits other than the usual ones."""
        self._usual, self._of, self.store, self._clock = usual, of_tenants or {}, store, clock
        self._keys: dict[str, _Spent] = {}
        self._new: dict[Place, Used] = {}  # not written yet
        self._minutes: dict[str, Minute] = {}  # of these keys
        self._days: dict[str, dict[str, Used]] = {}  # what was kept of the current day
        self._known_minutes = store.minutes() if store is not None else {}
        self._said = -SAID_AGAIN_S
        self._stopping = asyncio.Event()
        self.refused: Counter | None = None
        if store is not None and names:
            store.name(names)

    @property
    def limits_any(self) -> bool:
        """Whether some key has a limit."""
        return any(limits != NO_LIMITS for limits in (self._usual, *self._of.values()))

    def count_in(self, registry: CollectorRegistry) -> None:
        """Count refusals in a server's metrics, by the limit that was reached."""
        self.refused = Counter(
            "lanewise_budget_refusals",
            "Requests refused because their key had used what it may, by the limit.",
            ["limit"],
            registry=registry,
        )
        for kind in KINDS:
            for span in ("minute", "day"):
                self.refused.labels(f"{kind}_per_{span}")

    def enter(self, caller: Caller) -> None:
        """Count a request that has come; RateLimitExceededError if its key has used all it may."""
        spent = self._spent(caller.tenant)
        for one in () if caller.is_admin else self._lefts(caller.tenant, spent):
            if one.left <= 0:
                if self.refused is not None:
                    self.refused.labels(one.name).inc()
                raise _refusal(one)
        for used in (spent.in_minute, spent.in_day):
            used.requests += 1
        spent.callers[id(caller)] = caller

    def leave(self, caller: Caller, model: str) -> None:
        """A request that was counted is over: what it used of which model stays."""
        now = self._spent(caller.tenant)
        if now.callers.pop(id(caller), None) is None:
            return
        used = replace(_used(caller), requests=0)
        now.in_minute.add(used)
        now.in_day.add(used)
        place = Place(now.day, caller.tenant, model)
        self._new.setdefault(place, Used()).add(replace(used, requests=1))
        self._minutes[caller.tenant] = Minute(
            now.minute, now.in_minute.requests, now.in_minute.tokens
        )

    def headers(self, caller: Caller, path: str) -> list[tuple[bytes, bytes]]:
        """What a client is told of its limits, in the words of the dialect at a path."""
        if caller.is_admin:
            return []
        lefts = self._lefts(caller.tenant, self._spent(caller.tenant))
        told: list[tuple[str, str]] = []
        for kind in KINDS:
            some = [one for one in lefts if one.name.startswith(kind)]
            if some:
                tightest = min(some, key=lambda one: (one.left, -one.reset_s))
                told += _told(kind, tightest, path, self._clock())
        return [(name.encode(), value.encode()) for name, value in told]

    async def keep_writing(self) -> None:
        """Write what is new every second, and a last time when it is told to ``stop``."""
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), WRITTEN_EVERY_S)
            await self.write()

    def stop(self) -> None:
        """No request comes any more."""
        self._stopping.set()

    async def write(self) -> None:
        """Write what is new; if that fails it is tried again with the next."""
        store, new, minutes = self.store, self._new, self._minutes
        if store is None or not new:
            new.clear()
            return
        self._new, self._minutes = {}, {}
        try:
            await asyncio.to_thread(store.add, new, minutes)
        except sqlite3.Error as error:
            for place, used in new.items():
                self._new.setdefault(place, Used()).add(used)
            self._minutes = minutes | self._minutes
            if time.monotonic() - self._said >= SAID_AGAIN_S:
                self._said = time.monotonic()
                logger.warning("what keys use cannot be written now: %s", error)

    def _spent(self, tenant: str) -> _Spent:
        """What a key has used in the current minute and day."""
        now = self._clock()
        minute, day = int(now // MINUTE_S), utc_time(now)[:10]
        spent = self._keys.setdefault(tenant, _Spent())
        if spent.minute != minute:
            known = self._known_minutes.pop(tenant, None)
            spent.minute, spent.in_minute = minute, Used()
            if known is not None and known.minute == minute:
                spent.in_minute = Used(known.requests, known.tokens)
        if spent.day != day:
            spent.day, spent.in_day = day, self._kept(day, tenant)
        return spent

    def _kept(self, day: str, tenant: str) -> Used:
        """What is known of a day that begins for a key: after a restart, or a leap of the clock."""
        if day not in self._days:
            found: dict[str, Used] = {}
            if self.store is not None:
                with suppress(sqlite3.Error):
                    found = self.store.of_day(day)
            self._days = {day: found}
        kept = replace(self._days[day].get(tenant, Used()))
        for place, used in self._new.items():
            if (place.day, place.tenant) == (day, tenant):
                kept.add(used)
        return kept

    def _lefts(self, tenant: str, spent: _Spent) -> list[Left]:
        limits = self._of.get(tenant, self._usual)
        if limits == NO_LIMITS:
            return []
        now = self._clock()
        running = sum(_used(caller).tokens for caller in spent.callers.values())
        return list(_lefts(limits, spent, running, now))


def _lefts(limits: Limits, spent: _Spent, running: int, now: float) -> Iterator[Left]:
    for used, span, seconds in (
        (spent.in_minute, "minute", MINUTE_S),
        (spent.in_day, "day", DAY_S),
    ):
        for kind, count in (("requests", used.requests), ("tokens", used.tokens + running)):
            name = f"{kind}_per_{span}"
            if limit := getattr(limits, name):
                yield Left(name, limit, limit - count, seconds - now % seconds)


def _used(caller: Caller) -> Used:
    """What a request has come to so far."""
    record = caller.record
    if record is None:
        return Used(prompt_tokens=caller.n_encoded)
    usage = record.usage
    return Used(
        prompt_tokens=usage.prompt_tokens + caller.n_encoded,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
    )


def _refusal(left: Left) -> RateLimitExceededError:
    wait_s = max(1, math.ceil(left.reset_s))
    headers = {"retry-after": str(wait_s)}
    if wait_s > LONG_WAIT_S:
        headers["x-should-retry"] = "false"
    kind, _, span = left.name.partition("_per_")
    return RateLimitExceededError(
        f"this key has used its {left.limit} {kind} of this {span} ({left.name}); more in"
        f" {written(left.reset_s)}",
        headers=headers,
    )


def _told(kind: str, left: Left, path: str, now: float) -> Iterator[tuple[str, str]]:
    remaining = str(max(0, left.left))
    if path.startswith(ANTHROPIC):
        begin = f"anthropic-ratelimit-{kind}"
        yield f"{begin}-limit", str(left.limit)
        yield f"{begin}-remaining", remaining
        yield f"{begin}-reset", utc_time(now + left.reset_s)
        return
    yield f"x-ratelimit-limit-{kind}", str(left.limit)
    yield f"x-ratelimit-remaining-{kind}", remaining
    yield f"x-ratelimit-reset-{kind}", written(left.reset_s)


def written(seconds: float) -> str:
    """A time as OpenAI's headers have it: 6m0s, 1s, 1h2m3s; whole seconds, rounded up."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}h" if hours else ""
    return text + (f"{minutes}m" if hours or minutes else "") + f"{rest}s"
