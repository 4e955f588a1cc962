"""Whoever asked for something hears of it, whenever the sandbox is closed."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable

import pytest

from hostile_texts import ENDLESS_REGEX
from lanewise.api.shared.budgets import TextBudgets
from lanewise.sandbox.lane import SandboxError, pack_job
from lanewise.sandbox.pool import uncounted

VOCABULARY = {
    "vocabulary": {"n_tokens": 300, "special": [(299, "</s>")], "eos_ids": [299], "bos_id": None}
}
N_JOBS = 24
# An endless job takes some 0.4 GB each second: it should not end by its memory on any machine.
ENDLESS = TextBudgets(grammar_timeout_s=600, grammar_memory=16 << 30)


def job(number: int) -> bytes:
    text = ENDLESS_REGEX + "b" * number
    return pack_job(
        "compile", {"kind": "regex", "text": text, "before": "", "vocabulary": "vocabulary"}
    )


def sockets() -> set[str]:
    """The open sockets of this process."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return {name for name in found if name.startswith("socket:")}


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come to pass")


async def reasons_after(delay_s: float) -> list[str]:
    """How endless jobs end in a sandbox that is closed after some time."""
    sandbox = ENDLESS.sandbox(100, uncounted())
    await sandbox.prepare(VOCABULARY, sandbox.grammars.limits)
    asked = [
        asyncio.create_task(sandbox.grammars.run(job(i), VOCABULARY, i)) for i in range(N_JOBS)
    ]
    await asyncio.sleep(delay_s)
    await sandbox.close()
    ends = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
    with pytest.raises(SandboxError) as caught:
        await sandbox.grammars.run(job(0), VOCABULARY, 0)
    assert caught.value.reason == "stopped"
    assert all(isinstance(end, SandboxError) for end in ends), ends
    return [end.reason for end in ends]


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.1, 0.25, 0.5, 0.8, 1.2])
def test_every_job_ends_with_the_sandbox(delay_s):
    found = asyncio.run(reasons_after(delay_s))
    assert len(found) == N_JOBS
    assert set(found) <= {"stopped", "busy"}
    assert "stopped" in found


def test_a_job_that_is_begun_again_in_the_slow_lane_ends_with_the_sandbox():
    """Its turn comes in the moment in which the sandbox is closed."""

    async def close_then() -> str:
        sandbox = ENDLESS.sandbox(100, uncounted())
        await sandbox.prepare(VOCABULARY, sandbox.grammars.limits)
        lane = sandbox.grammars
        asked = [asyncio.create_task(lane.run(job(i), VOCABULARY, i)) for i in range(4)]
        try:
            await until(lambda: lane.n_slow_waiting == 2)
            asked[0].cancel()
            asked[1].cancel()
            await until(lambda: lane.n_slow_waiting < 2)  # its task is made, but has not run
        finally:
            await sandbox.close()
        ends = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        return [end.reason for end in ends[2:]]

    assert asyncio.run(close_then()) == ["stopped", "stopped"]


def test_a_zygote_that_owes_an_answer_leaves_no_socket_behind():
    """Closed while a worker is being forked: nobody but the one who waits may close the socket."""

    async def close_then() -> tuple[str, set[str]]:
        before = sockets()
        sandbox = ENDLESS.sandbox(100, uncounted())
        await sandbox.prepare(VOCABULARY, sandbox.grammars.limits)
        assert sandbox.zygote_pid is not None
        os.kill(sandbox.zygote_pid, signal.SIGSTOP)
        asked = asyncio.create_task(sandbox.grammars.run(job(0), VOCABULARY, 0))
        await asyncio.sleep(0.05)
        await sandbox.close()
        with pytest.raises(SandboxError) as caught:
            await asyncio.wait_for(asked, 60)
        await asyncio.sleep(0.1)  # whoever waits has been told
        return caught.value.reason, sockets() - before

    assert asyncio.run(close_then()) == ("stopped", set())
