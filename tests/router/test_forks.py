"""Servers are forked from processes that are ready, and go on without them."""

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal

import pytest

from lanewise import forking
from lanewise.loading.checkpoints.hub import bundled_model
from lanewise.router import forks
from lanewise.router.entries import Entry
from lanewise.router.process import Launcher, LoadError
from lanewise.settings import Settings
from processes import children, command_line, is_gone
from serving import wait_for

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library", "_as_before")]
SETTINGS = {"kv_memory": "4MiB", "threads": 1}


@pytest.fixture
def _as_before():
    yield
    ctypes.CDLL(None).prctl(forking.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@contextlib.asynccontextmanager
async def launching(folder):
    """A launcher, after whose end no process is left."""
    before = set(children(os.getpid()))
    launcher = Launcher(Settings(), folder)
    try:
        yield launcher
    finally:
        await launcher.close()
    async with asyncio.timeout(60):  # the loop has to run, for it waits for processes
        while not set(children(os.getpid())) <= before:
            forks.reap()
            await asyncio.sleep(0.01)


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


async def served(launcher, entry):
    child = await launcher.start(entry, {}, warms_up=True)
    await child.wait_until_ready(60)
    return child


def test_a_server_outlives_what_it_was_forked_from(tmp_path):
    entry = Entry(name="a", settings={"model": str(bundled_model()), **SETTINGS})

    async def run():
        async with launching(tmp_path) as launcher:
            keeper = await launcher.open(entry, {})
            child = await served(launcher, entry)
            nursery = launcher._nursery._process.pid
            assert len({child.pid, keeper.pid, nursery}) == 3
            assert parent_of(child.pid) == parent_of(keeper.pid) == os.getpid()
            assert os.getsid(child.pid) != os.getsid(0)
            for pid in (keeper.pid, nursery):
                os.kill(pid, signal.SIGKILL)
            await keeper.ended
            status, body = await child.line.read(b"/v1/models")
            assert (status, b'"id":"a"' in body) == (200, True)
            other = await served(launcher, entry)  # from new ones
            assert other.pid not in (child.pid, keeper.pid)
            for one in (child, other):
                await one.stop(30)
                assert one.ended.result() == "its process ended with status 0"

    asyncio.run(run())
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_loaded_again_is_not_opened_again_unless_its_file_is_another(tmp_path):
    path = tmp_path / "m.gguf"
    shutil.copy(bundled_model(), path)
    entry = Entry(name="a", settings={"model": str(path), **SETTINGS})

    async def run():
        async with launching(tmp_path) as launcher:
            keepers = []
            for _ in range(2):
                child = await served(launcher, entry)
                keepers.append((await launcher.open(entry, {})).pid)
                await child.stop(30)
            assert keepers[0] == keepers[1]
            assert 0 < launcher.kept["a"] < 200 << 20
            shutil.copy(bundled_model(), tmp_path / "new")
            os.replace(tmp_path / "new", path)
            child = await served(launcher, entry)
            assert (await launcher.open(entry, {})).pid not in keepers
            await child.stop(30)
            path.unlink()
            with pytest.raises(LoadError, match=r"m\.gguf: no such file"):
                await launcher.start(entry, {}, warms_up=True)
            assert launcher.kept == {}

    asyncio.run(run())


def test_what_cannot_be_shared_becomes_the_server(tmp_path):
    entry = Entry(name="a", settings={"model": "demo", **SETTINGS})  # of no file that is named

    async def run():
        async with launching(tmp_path) as launcher:
            keeper = await launcher.open(entry, {})
            child = await served(launcher, entry)
            assert child.pid == keeper.pid
            assert launcher.kept == {}
            await child.stop(30)
            assert await child.ended == await keeper.ended == "its process ended with status 0"

    asyncio.run(run())


def test_a_load_that_is_given_up_leaves_no_process(tmp_path):
    entry = Entry(name="a", settings={"model": str(bundled_model()), **SETTINGS})

    async def run():
        async with launching(tmp_path) as launcher:
            await launcher.open(entry, {})
            starting = asyncio.create_task(launcher.start(entry, {}, warms_up=True))
            while not forks._asking:  # noqa: ASYNC110
                await asyncio.sleep(0)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            while forks._asking:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_orphans_are_reaped_and_what_is_waited_for_is_left(tmp_path):
    async def run():
        forking.take_over()
        waited = await asyncio.create_subprocess_exec("sleep", "0")
        forks._children[waited.pid] = waited
        await waited.wait()
        del forks._children[waited.pid]
        shell = await asyncio.create_subprocess_exec(
            "sh", "-c", "sleep 0.01 & echo $!", stdout=asyncio.subprocess.PIPE
        )
        said, _ = await shell.communicate()
        orphan = int(said)
        wait_for(lambda: is_gone(orphan), "the end of the orphan")
        assert command_line(orphan) == []
        forks.reap()
        assert orphan not in children(os.getpid())

    asyncio.run(run())
