"""Puts model, engine and HTTP together, and takes them apart in order."""

import asyncio
import contextlib
import gc
import importlib.metadata
import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType

import uvicorn

from lanewise import host
from lanewise.api.state import Phase, ServerState
from lanewise.engine.engine import Engine, EngineConfig
from lanewise.engine.metrics import Metrics, ModelFacts
from lanewise.runtime import BLOCK_TOKENS, Model, Session, kernels
from lanewise.runtime.model import resolve_kv_type
from lanewise.settings import Settings, SettingsError
from lanewise.text.chat_template import ChatTemplate
from lanewise.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# Rows of logits are large (a vocabulary each); prompts are scored in pieces that fit this.
LOGITS_BYTES = 128 << 20
LEVELS = (("scalar", "avx2", "avx512vnni"), ("scalar", "neon", "dotprod", "i8mm", "sve"))
ACTIVITY_TICKS = 100  # of a tenth of a second
MANY_ROWS = 1 << 20
KEEP_ALIVE_S = 75  # longer than load balancers keep a connection they may still use
LAST_WORDS_S = 5  # for answers that are being sent when the engine has stopped


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
    with model:
        engine = _make_engine(settings, model, tokenizer, threads, limit)
        state = ServerState(
            engine=engine,
            tokenizer=tokenizer,
            model_name=engine.metrics.facts.model_name,
            version=_version(),
            fingerprint=_fingerprint(model),
            chat_template=template,
            max_body_bytes=settings.max_body_bytes,
            api_keys=settings.api_key,
        )
        return _serve(settings, state, listener)


def _make_engine(
    settings: Settings,
    model: Model,
    tokenizer: Tokenizer,
    threads: int,
    limit: host.MemoryLimit,
) -> Engine:
    """The engine with its session; the KV cache takes what memory the settings leave it."""
    context = model.config.context_length
    asked = settings.max_model_len
    if asked is not None and asked > context:
        raise SettingsError(f"max_model_len is {asked}; accepted: at most the model's {context}")
    kv_type = resolve_kv_type(settings.kv_type, model.weights)
    kv = host.choose_kv_blocks(
        kv_memory=settings.kv_memory,
        limit=limit,
        packed_bytes=model.info.packed_bytes,
        block_bytes=model.kv_block_bytes(kv_type),
        block_tokens=BLOCK_TOKENS,
        max_seqs=settings.max_seqs,
        max_model_len=asked or context,
    )
    holds = kv.blocks * BLOCK_TOKENS
    if asked is not None and asked > holds:
        raise host.HostError(
            f"max_model_len is {asked}; the KV cache of {host.format_size(kv.n_bytes)} "
            f"({kv.reason}) holds {holds} tokens"
        )
    max_model_len = min(asked or context, holds)
    logger.info(
        "KV cache: %d blocks of %d tokens, %s (%s); the context holds %d tokens",
        *(kv.blocks, BLOCK_TOKENS, host.format_size(kv.n_bytes), kv.reason, max_model_len),
    )
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
    )
    session = Session(
        model,
        threads=threads,
        blocks=config.n_blocks,
        max_batch_tokens=config.max_step_tokens,
        max_batch_logits=config.max_step_logits,
        kv_type=kv_type,
    )
    facts = ModelFacts(
        model_name=settings.served_model_name or model.name,
        isa=model.info.isa,
        threads=threads,
        weights=model.weights,
        kernels=",".join(_kernels_in_use(model.info.isa, model.weights)),
        version=_version(),
        kv_type=kv_type,
        n_blocks=config.n_blocks,
        max_model_len=max_model_len,
    )
    return Engine(session, config, Metrics(facts))


def _kernels_in_use(isa: str, weights: str) -> list[str]:
    """The kernels that multiply most matrices with one row and with many."""
    family = next(levels for levels in LEVELS if isa in levels)
    usable = family[: family.index(isa) + 1]
    rows = [row for row in kernels() if row.weights == weights and row.isa in usable]
    # The table's order is that of preference: the first row that fits is used.
    chosen = [next(r.symbol for r in rows if r.min_rows <= n) for n in (1, MANY_ROWS) if rows]
    return list(dict.fromkeys(chosen))


def _version() -> str:
    try:
        return importlib.metadata.version("lanewise")
    except importlib.metadata.PackageNotFoundError:  # run from the sources
        return "0"


def _fingerprint(model: Model) -> str:
    """Changes when the same request may get another answer; threads and CPU are no part of it."""
    return f"lanewise-{_version()}-n{model.info.numerics}-{model.weights}"


def _serve(settings: Settings, state: ServerState, listener: socket.socket) -> int:
    # Half of a small model's start-up; imported beside the loading of the model.
    from lanewise.api.app import create_app

    config = uvicorn.Config(
        create_app(state, cors_origins=settings.cors_origins),
        loop="uvloop",
        http="httptools",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_WORDS_S,
    )
    address = listener.getsockname()
    logger.info(
        "serving %s (%s, %s, %d threads) on http://%s:%d",
        *(state.model_name, state.engine.metrics.facts.weights, state.engine.metrics.facts.isa),
        *(state.engine.metrics.facts.threads, settings.host, address[1]),
    )
    # What was made so far lives until the end; the collector need not look at it again.
    gc.freeze()
    state.engine.start()
    try:
        DrainingServer(config, state, settings.drain_timeout_s).run(sockets=[listener])
    finally:
        state.engine.stop()
        state.text_pool.shutdown(wait=False, cancel_futures=True)
    return 0


class DrainingServer(uvicorn.Server):
    """After the first signal it is not ready but still listens, until all answers are complete."""

    def __init__(self, config: uvicorn.Config, state: ServerState, drain_timeout_s: float) -> None:
        super().__init__(config)
        self._state = state
        self._drain_timeout_s = drain_timeout_s
        self._deadline: float | None = None
        self._last_load_at = time.monotonic()
        self._last_load = state.engine.metrics.load()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike the base class, do not raise the signal again at the end: the exit is orderly."""
        # Python lets only the main thread handle signals; elsewhere somebody else must.
        is_main = threading.current_thread() is threading.main_thread()
        handled = (signal.SIGTERM, signal.SIGINT) if is_main else ()
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; a second signal ends at once."""
        if self._deadline is not None:
            self._deadline = 0.0
            return
        self._state.phase = Phase.DRAINING
        self._deadline = time.monotonic() + self._drain_timeout_s

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: look whether it is time to go."""
        if self._deadline is not None and not self.should_exit:
            engine = self._state.engine
            engine.stop_accepting()
            if time.monotonic() >= self._deadline and engine.unfinished:
                logger.warning("%d sequences have not ended in time", engine.unfinished)
                await asyncio.to_thread(engine.stop)  # their clients are told why
            self.should_exit = not engine.unfinished
        if counter % ACTIVITY_TICKS == 0:
            self._log_activity()
        return await super().on_tick(counter)

    def _log_activity(self) -> None:
        """A line of load now and then, while there is any."""
        metrics = self._state.engine.metrics
        now, load = time.monotonic(), metrics.load()
        seconds, before = now - self._last_load_at, self._last_load
        self._last_load_at, self._last_load = now, load
        if load.running or load.waiting or load.generation_tokens > before.generation_tokens:
            logger.info(
                "prompt %.0f and generation %.0f tokens/s, %d running, %d waiting, KV %.0f %%",
                (load.prompt_tokens - before.prompt_tokens) / seconds,
                (load.generation_tokens - before.generation_tokens) / seconds,
                load.running,
                load.waiting,
                100 * load.kv_usage,
            )
