"""Outputs on their way to an event loop: in order, a few at a time, not in the engine's way."""

import asyncio

import pytest

from lanewise.engine.delivery import AT_ONCE, Outbox


@pytest.fixture
def outbox():
    return Outbox()


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def turns(count: int) -> None:
    """Let the event loop go round so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.anyio
async def test_everything_comes_in_order_and_others_have_their_turn(outbox):
    loop, got = asyncio.get_running_loop(), []
    for i in range(3 * AT_ONCE):
        outbox.add(loop, got.append, i)
    outbox.send()
    outbox.add(loop, got.append, 3 * AT_ONCE)  # by the next step, while these are delivered
    loop.call_soon(got.append, "another")
    outbox.send()
    await turns(8)
    assert got.index("another") == AT_ONCE
    got.remove("another")
    assert got == list(range(3 * AT_ONCE + 1))


@pytest.mark.anyio
async def test_what_is_left_waits_while_the_engine_works(outbox):
    loop, got = asyncio.get_running_loop(), []
    for i in range(2 * AT_ONCE):
        outbox.add(loop, got.append, i)
    outbox.send()
    await turns(1)
    outbox.pause()
    await turns(5)
    assert len(got) == AT_ONCE
    outbox.send()
    await turns(3)
    assert got == list(range(2 * AT_ONCE))


@pytest.mark.anyio
async def test_an_error_in_one_delivery_keeps_nothing_from_the_others(outbox, caplog):
    loop, got = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: got.append(type(context["exception"])))
    outbox.add(loop, lambda: 1 / 0)
    outbox.add(loop, got.append, 1)
    outbox.send()
    await turns(3)
    outbox.add(loop, got.append, 2)
    outbox.send()
    await turns(3)
    assert got == [ZeroDivisionError, 1, 2]
