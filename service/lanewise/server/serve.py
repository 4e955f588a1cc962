"""Puts model, engine and HTTP together, and takes them apart in order."""

import asyncio
import contextlib
import importlib
import logging
import os
import socket

import uvloop

from lanewise import host
from lanewise.api import warm_up
from lanewise.api.shared.state import Phase, ServerState
from lanewise.api.shared.workers import started
from lanewise.records.database import Database
from lanewise.runtime import Model
from lanewise.server import file_watch, machine
from lanewise.server.listener import address_of
from lanewise.server.make_spending import make_spending
from lanewise.server.make_state import make_state
from lanewise.server.model_text import Text
from lanewise.server.prepare_sandbox import prepare_sandbox
from lanewise.settings import Settings

logger = logging.getLogger(__name__)

ANY_ADDRESS = ("0.0.0.0", "::", "")
OTHER_THREADS = 4  # for what is rare: a process to start, metrics, an adapter to load


def serve(
    settings: Settings,
    model: Model,
    text: Text,
    threads: int,
    limit: host.MemoryLimit,
    listener: socket.socket,
    *,
    records: Database | None = None,
    warms_up: bool = True,
) -> int:
    """Serve ``model`` on ``listener`` until told to stop, and close it; the exit status.

    Unless it ``warms_up`` with a request of its own it is ready when it listens.
    """
    with contextlib.ExitStack() as models:
        state = make_state(settings, model, text, threads, limit, models, records)
        state.spending = make_spending(settings, records)
        if not warms_up:
            state.phase = Phase.READY
        return _serve(settings, state, listener)


def _serve(settings: Settings, state: ServerState, listener: socket.socket) -> int:
    facts = state.engine.metrics.facts
    logger.info(
        "serving %s (%s, %s, %d threads) on %s",
        *(", ".join(state.names), facts.weights, facts.isa, facts.threads),
        address_of(listener, settings.host),
    )
    logger.info(
        "open %s/ in a browser to chat, /guide to read; %s",
        address_of(listener, "localhost" if settings.host in ANY_ADDRESS else settings.host),
        "a key is wanted"
        if state.api_keys
        else "no key is wanted: set api_key_file before others can reach this address",
    )
    machine.MachineMetrics(state.engine.metrics.registry)
    state.engine.start()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_answer(settings, state, listener))
    finally:
        state.engine.stop()
        state.workers.close()
        if state.tracer is not None:
            state.tracer.close()
    logger.info("stopped")
    if state.grammars.is_compiling:
        # It ends within its budget; the process need not wait for that.
        logging.shutdown()
        os._exit(0)
    return 0


async def _answer(settings: Settings, state: ServerState, listener: socket.socket) -> None:
    asyncio.get_running_loop().set_default_executor(started(OTHER_THREADS, "lanewise-other"))
    with host.garbage_left_alone(for_good=True):
        warm_up.begin(state)  # as the application would later, which tests run without this
        # While the model computes its first token the interpreter is free for what speaks HTTP, and
        # what making the tokenizer took, a tenth of a gigabyte at worst, goes back to the system.
        given_back = asyncio.create_task(asyncio.to_thread(host.give_back_memory))
        web = await asyncio.to_thread(importlib.import_module, "lanewise.api.http_server")
        server = web.make_server(settings, state)
        await given_back
        checking = asyncio.create_task(prepare_sandbox(state))
    watching = asyncio.create_task(file_watch.watch(state))
    quota = asyncio.create_task(machine.watch_quota(state.engine.metrics.facts.threads))
    await server.serve(sockets=[listener])
    watching.cancel()
    quota.cancel()
    checking.cancel()
