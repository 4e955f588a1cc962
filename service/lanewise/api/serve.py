"""Puts model, engine and HTTP together, and takes them apart in order."""

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import socket
from functools import partial
from pathlib import Path

import uvloop

from lanewise import __version__, host
from lanewise.api import file_watch, warm_up
from lanewise.api.budgets import TextBudgets
from lanewise.api.draft import OpenedDraft, open_draft
from lanewise.api.request_budgets import RequestBudgets
from lanewise.api.state import Phase, ServerState
from lanewise.engine.adapters import AdapterError, AdapterFileError, Adapters
from lanewise.engine.config import EngineConfig
from lanewise.engine.engine import Engine
from lanewise.engine.metrics import Metrics, ModelFacts
from lanewise.engine.window import Window
from lanewise.loading.checkpoint import ModelFileError
from lanewise.loading.lora import files_under, largest_adapter_bytes, open_adapter
from lanewise.runtime import BLOCK_TOKENS, Adapter, Model, NativeError, Session, kernels
from lanewise.runtime.model import resolve_kv_type
from lanewise.sandbox.lane import SandboxError
from lanewise.settings import Settings, SettingsError
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError
from lanewise.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# Rows of logits are large (a vocabulary each); prompts are scored in pieces that fit this.
LOGITS_BYTES = 128 << 20
MANY_THREADS, LONG_STEP_S = 8, 0.010
LEVELS = (
    ("scalar", "avx2", "avx512vnni", "avx512vbmi", "amx"),
    ("scalar", "neon", "dotprod", "i8mm", "sve"),
)
MANY_ROWS = 1 << 20


def serve(
    settings: Settings,
    model: Model,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    threads: int,
    limit: host.MemoryLimit,
    listener: socket.socket,
) -> int:
    """Serve ``model`` on ``listener`` until told to stop, and close it; the exit status."""
    with contextlib.ExitStack() as models:
        models.enter_context(model)
        draft = open_draft(settings, tokenizer, threads, model.placement)
        if draft is not None:
            models.enter_context(draft.model)
        adapters = _make_adapters(settings, model)
        engine = _make_engine(settings, model, draft, tokenizer, threads, limit, adapters)
        state = ServerState(
            engine=engine,
            tokenizer=tokenizer,
            model_name=engine.metrics.facts.model_name,
            version=__version__,
            fingerprint=_fingerprint(model),
            chat_template=template,
            max_body_bytes=settings.max_body_bytes,
            request_budgets=RequestBudgets.of(settings),
            give_back_memory=host.give_back_memory,
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
        )
        return _serve(settings, state, listener)


def _make_engine(
    settings: Settings,
    model: Model,
    draft: OpenedDraft | None,
    tokenizer: Tokenizer,
    threads: int,
    limit: host.MemoryLimit,
    adapters: Adapters | None,
) -> Engine:
    """The engine with its session; the KV cache takes what memory the settings leave it."""
    context = model.config.context_length
    asked = settings.max_model_len
    if asked is not None and asked > context:
        raise SettingsError(f"max_model_len is {asked}; accepted: at most the model's {context}")
    kv_type = resolve_kv_type(settings.kv_cache_dtype, model.weights)
    # A draft model reads a text later than the model does, and from its beginning on.
    sliding_window = None if draft else model.config.sliding_window
    window = Window(sliding_window, settings.max_step_tokens)
    kv = host.choose_kv_blocks(
        kv_memory=settings.kv_memory,
        limit=limit,
        packed_bytes=model.info.packed_bytes
        + (draft.model.info.packed_bytes if draft else 0)
        + _adapter_bytes(settings, model, adapters),
        block_bytes=model.kv_block_bytes(kv_type) + (draft.block_bytes if draft else 0),
        max_seqs=settings.max_seqs,
        max_model_len=asked or context,
        sequence_blocks=window.most_blocks(asked or context),
    )
    max_model_len = window.longest(kv.blocks, asked or context)
    if asked is not None and asked > max_model_len:
        raise host.HostError(
            f"max_model_len is {asked}; the KV cache of {host.format_size(kv.n_bytes)} "
            f"({kv.reason}) holds {max_model_len} tokens"
        )
    logger.info(
        "KV cache: %d blocks of %d tokens in %s, %s (%s); the context holds %d tokens",
        *(kv.blocks, BLOCK_TOKENS, kv_type, host.format_size(kv.n_bytes), kv.reason),
        max_model_len,
    )
    has_spare_cpu = host.has_spare_cpu(threads)
    rows = LOGITS_BYTES // (4 * model.config.vocab_size)
    config = EngineConfig(
        n_blocks=kv.blocks,
        max_model_len=max_model_len,
        vocab_size=model.config.vocab_size,
        unused_ids=tokenizer.unused_ids,
        max_seqs=settings.max_seqs,
        max_step_tokens=settings.max_step_tokens,
        max_step_logits=max(settings.max_seqs, min(rows, settings.max_step_tokens)),
        max_queued_requests=settings.max_queued_requests,
        max_queued_tokens=settings.max_queued_tokens,
        queue_timeout_s=settings.queue_timeout_s,
        request_timeout_s=settings.request_timeout_s,
        itl_target_s=settings.itl_target_ms / 1000,
        prefix_cache=settings.prefix_cache,
        max_draft=settings.draft_tokens if settings.speculation else 0,
        sliding_window=sliding_window,
        has_spare_cpu=has_spare_cpu,
        # Without a CPU to spare, or many, who plans and sends has to take one from the model: in
        # short steps that comes too late to be of use, and makes times between tokens uneven.
        min_ahead_s=0.0 if has_spare_cpu or threads >= MANY_THREADS else LONG_STEP_S,
    )
    session = Session(
        model,
        threads=threads,
        blocks=config.n_blocks,
        max_batch_tokens=config.max_step_tokens,
        max_batch_logits=config.max_step_logits,
        kv_type=kv_type,
        max_adapter_rank=0 if adapters is None else settings.max_lora_rank,
    )
    facts = ModelFacts(
        model_name=settings.served_model_name or model.name,
        isa=model.info.isa,
        threads=threads,
        weights=model.weights,
        kernels=",".join(_kernels_in_use(model.info.isa, model.weights)),
        version=__version__,
        kv_type=kv_type,
        prefix_cache=config.prefix_cache,
        n_blocks=config.n_blocks,
        max_model_len=max_model_len,
        max_draft=config.max_draft,
    )
    guesses = None
    if draft is not None:
        guesses = draft.run(
            threads=threads,
            blocks=config.n_blocks,
            max_seqs=config.max_seqs,
            max_step_tokens=config.max_step_tokens,
            prefix_cache=config.prefix_cache,
        )
    return Engine(session, config, Metrics(facts), guesses)


def _make_adapters(settings: Settings, model: Model) -> Adapters | None:
    """The adapters that the settings name; None when there will never be any."""
    if not settings.lora and not settings.allow_runtime_lora:
        return None
    if len(settings.lora) > settings.max_loras:
        raise SettingsError(
            f"lora has {len(settings.lora)} adapters; accepted: at most max_loras ="
            f" {settings.max_loras}"
        )

    def load(path: str) -> Adapter:
        try:
            files = open_adapter(Path(path).expanduser(), model.config, settings.max_lora_rank)
            try:
                return Adapter.load(model, files)
            finally:
                files.close()
        except (ModelFileError, NativeError, OSError, ValueError) as error:
            raise AdapterFileError(str(error)) from error

    adapters = Adapters(load, settings.max_loras)
    for name, path in settings.lora:
        if name == (settings.served_model_name or model.name):
            raise SettingsError(f"lora: {name!r} is the name of the served model")
        try:
            loaded = adapters.load(name, path)
        except AdapterError as error:
            raise SettingsError(f"lora: {error}") from error
        size = host.format_size(loaded.weights.n_bytes)
        logger.info("adapter %s: rank %d, %s, %s", name, loaded.weights.rank, size, path)
    return adapters


def _adapter_bytes(settings: Settings, model: Model, adapters: Adapters | None) -> int:
    """Memory of adapters: of those that are there, and of those that requests may load."""
    if adapters is None:
        return 0
    there = [adapter.weights.n_bytes for adapter in adapters.all()]
    more = settings.max_loras - len(there) if settings.allow_runtime_lora else 0
    return sum(there) + more * largest_adapter_bytes(model.config, settings.max_lora_rank)


def _kernels_in_use(isa: str, weights: str) -> list[str]:
    """The kernels that multiply most matrices with one row and with many."""
    family = next(levels for levels in LEVELS if isa in levels)
    usable = family[: family.index(isa) + 1]
    rows = [row for row in kernels() if row.weights == weights and row.isa in usable]
    # The table's order is that of preference: the first row that fits is used.
    chosen = [next(r.symbol for r in rows if r.min_rows <= n) for n in (1, MANY_ROWS) if rows]
    return list(dict.fromkeys(chosen))


def _fingerprint(model: Model) -> str:
    """Changes when the same request may get another answer; threads and CPU are no part of it."""
    return f"lanewise-{__version__}-n{model.info.numerics}-{model.weights}"


def _serve(settings: Settings, state: ServerState, listener: socket.socket) -> int:
    facts = state.engine.metrics.facts
    logger.info(
        "serving %s (%s, %s, %d threads) on http://%s:%d",
        *(state.model_name, facts.weights, facts.isa, facts.threads),
        *(settings.host, listener.getsockname()[1]),
    )
    state.engine.start()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_answer(settings, state, listener))
    finally:
        state.engine.stop()
        for pool in state.text_pools:
            pool.shutdown(wait=False, cancel_futures=True)
    if state.grammars.is_compiling:
        # It ends within its budget; nobody has to wait for that.
        logging.shutdown()
        os._exit(0)
    return 0


async def _answer(settings: Settings, state: ServerState, listener: socket.socket) -> None:
    gc.disable()
    warm_up.begin(state)
    # While the model computes its first token the interpreter is free for what speaks HTTP, and
    # what making the tokenizer took, a tenth of a gigabyte at worst, goes back to the system.
    given_back = asyncio.create_task(asyncio.to_thread(host.give_back_memory))
    web = await asyncio.to_thread(importlib.import_module, "lanewise.api.http_server")
    server = web.make_server(settings, state)
    await given_back
    checking = asyncio.create_task(_check_template(state))
    # What was made so far lives until the end; the collector need not look at it again.
    gc.freeze()
    gc.enable()
    watching = asyncio.create_task(file_watch.watch(state))
    await server.serve(sockets=[listener])
    watching.cancel()
    checking.cancel()


async def _check_template(state: ServerState) -> None:
    """Say early, but not before the server is ready, that chat requests will be refused."""
    if state.warming is not None:
        await asyncio.wait({state.warming})
    if state.chat_template is None or state.phase is not Phase.READY:
        return
    try:
        await state.templates.check(state.chat_template)
    except ChatTemplateError as error:
        logger.warning("chat requests get status 400: %s", error)
    except SandboxError as error:
        logger.warning("the chat template has not been checked: %s", error)
