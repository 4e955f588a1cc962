"""Models that do not fit together take turns; keys share the places of those that wait."""

import asyncio

import pytest

from lanewise.router import fleet as fleets
from lanewise.router.entries import Catalogue, Entry
from lanewise.router.fleet import BusyError, Fleet


class QuickChild:
    """A process that is there at once, and gone as soon as it is told to."""

    def __init__(self):
        self.ended = asyncio.get_running_loop().create_future()

    async def wait_until_ready(self, seconds):
        pass

    async def stop(self, seconds):
        if not self.ended.done():
            self.ended.set_result("it was told to")


class QuickLauncher:
    """Starts them, and notes whose."""

    drain_s, kept = 0.0, {}

    def __init__(self):
        self.started = []

    async def plan(self, entry, budget):
        return 1, {}

    async def prepare(self):
        pass

    async def close(self):
        pass

    async def open(self, entry, settings):
        pass

    def reap(self):
        pass

    async def start(self, entry, settings, *, warms_up):
        self.started.append(entry.name)
        return QuickChild()


def in_fleet(test, **more):
    """Run a test with two models and room for one."""

    async def run():
        entries = tuple(Entry(name=name, settings={}) for name in "ab")
        launcher = QuickLauncher()
        fleet = Fleet(Catalogue(entries=entries, **more), launcher, 1)
        try:
            async with asyncio.timeout(30):
                await test(fleet, launcher, *fleet.slots.values())
        finally:
            await fleet.close()

    asyncio.run(run())


async def use(fleet, slot, key=0):
    async with fleet.using(slot, key):
        pass


async def until(condition):
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch):
    monkeypatch.setattr(fleets, "LEAST_TURN_S", 0.0)


def test_a_busy_model_that_had_its_turn_lets_another_in_and_comes_back():
    async def test(fleet, launcher, a, b):
        async with fleet.using(a):
            other = asyncio.create_task(use(fleet, b))
            await until(lambda: a.is_leaving)
            late = [asyncio.create_task(use(fleet, a)) for _ in range(3)]
            await until(lambda: a.waiting == 3)
            assert launcher.started == ["a"]
            assert a.state == "loaded"
        await other
        await asyncio.gather(*late)
        assert launcher.started == ["a", "b", "a"]  # one load for all that waited

    in_fleet(test)


def test_a_model_has_its_whole_turn_first(monkeypatch):
    monkeypatch.setattr(fleets, "LEAST_TURN_S", 1000.0)

    async def test(fleet, launcher, a, b):
        async with fleet.using(a):
            other = asyncio.create_task(use(fleet, b))
            await until(lambda: b.waiting == 1)
            for _ in range(5):  # it answers what comes
                await use(fleet, a)
            assert not a.is_leaving
            assert not other.done()
        await other
        assert launcher.started == ["a", "b"]

    in_fleet(test, wait_s=5000.0)


def test_a_model_that_need_not_leave_after_all_stays():
    async def test(fleet, launcher, a, b):
        async with fleet.using(a):
            other = asyncio.create_task(use(fleet, b))
            await until(lambda: a.is_leaving)
            late = asyncio.create_task(use(fleet, a))
            await until(lambda: a.waiting == 1)
            other.cancel()
            await late
        assert launcher.started == ["a"]

    in_fleet(test)


def test_every_key_has_places_to_wait():
    gate = asyncio.Event()

    class Slow(QuickChild):
        async def wait_until_ready(self, seconds):
            await gate.wait()

    async def test(fleet, launcher, a, b):
        async def start(entry, settings, *, warms_up):
            return Slow()

        launcher.start = start
        greedy = [asyncio.create_task(use(fleet, a, key=1)) for _ in range(16)]
        await until(lambda: a.waiting == 16)
        with pytest.raises(BusyError, match="16 requests wait for a to load; the limit is 16"):
            await use(fleet, a, key=1)
        others = [asyncio.create_task(use(fleet, a, key=2)) for _ in range(2)]
        await until(lambda: a.waiting == 18)
        with pytest.raises(BusyError):  # an eighth
            await use(fleet, a, key=2)
        gate.set()
        await asyncio.gather(*greedy, *others)
        assert a.waits == {}

    in_fleet(test, max_waiting=16)
