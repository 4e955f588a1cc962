"""Who does a job when: a lane with workers that take as long as a test says."""

import asyncio
from collections import defaultdict

from lanewise.sandbox.lane import SLICE_S, Lane, Limits, pack_job
from lanewise.sandbox.process import Worker


class Slow:
    """A worker whose jobs are done, and which ends, when it is told."""

    def __init__(self) -> None:
        self.pid = 0
        self.made: set[str] = set()
        self.answers = asyncio.Event()
        self.ends = asyncio.Event()
        self.is_ending = asyncio.Event()

    async def ask(self, message: bytes, most_bytes: int) -> dict:
        await self.answers.wait()
        return {"result": 1, "retire": False, "made": True}

    def slow_down(self, nice: int) -> None:
        pass

    async def end(self) -> int:
        self.is_ending.set()
        await self.ends.wait()
        return 0


class Count:
    def inc(self) -> None:
        pass


async def turns() -> None:
    """Let everything that can go on do so."""
    for _ in range(100):
        await asyncio.sleep(0)


def test_a_place_that_comes_free_while_a_worker_ends_is_used():
    async def run() -> None:
        workers: asyncio.Queue[Slow] = asyncio.Queue()

        async def new_worker() -> Slow:
            worker = Slow()
            workers.put_nowait(worker)
            return worker

        limits = Limits(cpu_s=1e6, memory=1, answer=1)
        lane = Lane("job", "done", limits, new_worker, defaultdict(Count), slow_places=1)
        first, second = (
            asyncio.create_task(lane.run(pack_job("a", {}), {}, client)) for client in (0, 1)
        )
        async with asyncio.timeout(100 * SLICE_S):
            slow, tried = await workers.get(), await workers.get()
            await tried.is_ending.wait()  # the other has the only place
            slow.answers.set()
            slow.ends.set()
            assert await first == 1
            await turns()
            assert lane.n_slow == 0
            tried.ends.set()
            again = await workers.get()
            again.answers.set()
            again.ends.set()
            assert await second == 1

    asyncio.run(run())


def test_a_worker_ends_once_whoever_is_cancelled():
    class Zygote:
        def __init__(self) -> None:
            self.reaped: list[int] = []
            self.made: set[str] = set()
            self.may_reap = asyncio.Event()

        async def reap(self, pid: int) -> int:
            self.reaped.append(pid)
            await self.may_reap.wait()
            return 9

    class Channel:
        def close(self) -> None:
            pass

    async def run() -> None:
        zygote = Zygote()
        process = await asyncio.create_subprocess_exec("sleep", "60")
        worker = Worker(zygote, process.pid, Channel())
        ending = asyncio.create_task(worker.end())
        await turns()
        assert zygote.reaped
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        zygote.may_reap.set()
        assert await worker.end() == 9
        assert zygote.reaped == [process.pid]
        await process.wait()

    asyncio.run(run())
