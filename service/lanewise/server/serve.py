"""Puts model, engine and HTTP together, and takes them apart in order."""

import asyncio
import contextlib
import importlib
import logging
import os
import socket
from functools import partial
from pathlib import Path

import uvloop

from lanewise import __version__, host
from lanewise.api import warm_up
from lanewise.api.batches.runner import BatchRules
from lanewise.api.observing.tracing import Tracer
from lanewise.api.shared.budgets import TextBudgets
from lanewise.api.shared.request_budgets import RequestBudgets
from lanewise.api.shared.response_store import ResponseStore
from lanewise.api.shared.state import ModelCard, Phase, ServerState
from lanewise.api.shared.workers import INLINE_SIZE, Workers, started
from lanewise.batches.hours import Hours
from lanewise.engine.encoding import EncoderEngine
from lanewise.engine.engine import Engine
from lanewise.loading.adapters.lora import files_under
from lanewise.records.database import Database
from lanewise.runtime import Model
from lanewise.sandbox.lane import SandboxError
from lanewise.server import file_watch, machine
from lanewise.server.adapters import make_adapters
from lanewise.server.draft import open_draft
from lanewise.server.eyes import make_eyes
from lanewise.server.listener import address_of
from lanewise.server.make_encoder import make_encoder
from lanewise.server.make_engine import make_engine
from lanewise.server.make_issuer import make_issuer
from lanewise.server.make_records import open_files
from lanewise.server.make_spending import make_spending
from lanewise.server.model_text import Text
from lanewise.server.names import names_of
from lanewise.settings import Settings
from lanewise.text.chat_template import ChatTemplateError

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = Settings.max_body_bytes
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
    tokenizer = text.tokenizer
    with contextlib.ExitStack() as models:
        models.enter_context(model)
        adapters, see = None, None
        engine: Engine | EncoderEngine
        if text.pooling is not None:
            engine = make_encoder(settings, model, threads, limit, text.pooling.max_tokens)
        else:
            draft = open_draft(settings, tokenizer, threads, model.placement)
            if draft is not None:
                models.enter_context(draft.model)
            adapters = make_adapters(settings, model)
            windows = model.kv_layout("f32", groups_by_window=True).windows
            has_head = model.config.has_mtp
            see = make_eyes(settings, model.vision, tokenizer, windows, has_head=has_head)
            engine = make_engine(
                *(settings, model, draft, tokenizer, threads, limit, adapters),
                sees=see is not None,
            )
        state = ServerState(
            engine=engine,
            tokenizer=tokenizer,
            names=names_of(settings, model),
            version=__version__,
            fingerprint=_fingerprint(model),
            chat_template=text.chat_template,
            see=see,
            pooling=text.pooling,
            sampling_defaults=text.sampling,
            card=ModelCard(
                model.config.architecture,
                model.info.held_weights,
                model.info.packed_bytes,
                text.notice,
            ),
            max_body_bytes=_max_body_bytes(settings, sees=see is not None),
            request_budgets=RequestBudgets.of(settings),
            workers=Workers(host.give_back_memory, 0 if tokenizer.is_limited else INLINE_SIZE),
            step_timeout_s=settings.step_timeout_s,
            api_keys=settings.api_key,
            share_prefix_cache=settings.share_prefix_cache,
            admin_keys=settings.admin_api_key,
            allow_high_priority=settings.allow_high_priority,
            adapters=adapters,
            locate_adapter=partial(files_under, Path(settings.lora_root or ""))
            if settings.allow_runtime_lora
            else None,
            budgets=TextBudgets.of(settings),
            spending=make_spending(settings, records),
            records=records,
            files=open_files(settings, records),
            batch_rules=BatchRules(settings.batch_concurrency, Hours(settings.batch_hours)),
            responses=ResponseStore(settings.response_store_bytes, settings.max_stored_responses),
            issuer=None
            if text.pooling is not None
            else make_issuer(
                settings, model, None if text.chat_template is None else text.chat_template.digest
            ),
            tracer=Tracer(settings.otlp_traces_endpoint, __version__)
            if settings.otlp_traces_endpoint
            else None,
        )
        if not warms_up:
            state.phase = Phase.READY
        return _serve(settings, state, listener)


def _max_body_bytes(settings: Settings, *, sees: bool) -> int:
    """What the settings say; where that is what they always say, an image has room in base64."""
    given = settings.max_body_bytes
    return max(given, 2 * settings.max_image_bytes) if sees and given == MAX_BODY_BYTES else given


def _fingerprint(model: Model) -> str:
    """Changes when the same request may get another answer; threads and CPU are no part of it."""
    angles = "short" if model.config.is_for_short_context else ""
    weights = "-".join(filter(None, (model.weights, model.parts, angles)))
    return f"lanewise-{__version__}-n{model.info.numerics}-{weights}"


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
        checking = asyncio.create_task(_prepare_sandbox(state))
    watching = asyncio.create_task(file_watch.watch(state))
    quota = asyncio.create_task(machine.watch_quota(state.engine.metrics.facts.threads))
    await server.serve(sockets=[listener])
    watching.cancel()
    quota.cancel()
    checking.cancel()


async def _prepare_sandbox(state: ServerState) -> None:
    """Say early, but not before the server is ready, what requests will be refused."""
    if state.warming is not None:
        await asyncio.wait({state.warming})
    if state.eyes is not None and state.phase is Phase.READY:
        try:
            await state.eyes.service.prepare()
        except SandboxError as error:
            logger.warning("what reads images has not been tried: %s", error)
    if state.chat_template is None or state.phase is not Phase.READY:
        return
    try:
        await state.templates.check(state.chat_template)
    except ChatTemplateError as error:
        logger.warning("chat requests get status 400: %s", error)
    except SandboxError as error:
        logger.warning("the chat template has not been checked: %s", error)
