"""The process that waits for the next load."""

import asyncio

from lanewise.router.entries import Entry
from lanewise.router.process import Launcher
from lanewise.settings import Settings
from processes import is_gone


def test_a_load_takes_the_process_that_waits_and_what_waits_goes_with_the_router(tmp_path):
    entry = Entry(name="a", settings={"model": str(tmp_path / "none.gguf")})

    async def run():
        launcher = Launcher(Settings(), tmp_path)
        await launcher.prepare()
        waiting = (await launcher._spare).pid
        child = await launcher.start(entry, {})
        assert child.pid == waiting
        await launcher.prepare()
        spare = await launcher._spare
        assert spare.pid != waiting
        reason = await child.ended
        await launcher.close()
        assert is_gone(spare.pid)
        await launcher.prepare()
        assert launcher._spare is None
        return reason

    reason = asyncio.run(run())
    assert "none.gguf: no such file or directory" in reason
    assert list(tmp_path.iterdir()) == []
