"""The HTTP server: uvicorn, which drains instead of stopping at once."""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType

import uvicorn

from lanewise.api.app import create_app
from lanewise.api.endpoints.table import error_forms
from lanewise.api.http.front import Front
from lanewise.api.http.web_config import make_config
from lanewise.api.http.web_pages import WebPages
from lanewise.api.shared.state import Phase, ServerState
from lanewise.settings import Settings

logger = logging.getLogger(__name__)

TICK_S, TICKS, ACTIVITY_TICKS = 0.1, 864_000, 100
FIRST_PAUSE_S = 0.001  # of those, each twice as long, in which it looks whether all is sent
KEEP_ALIVE_S = 75  # longer than load balancers keep a connection they may still use
LAST_WORDS_S = 5  # for answers that are being sent when the engine has stopped


def make_server(settings: Settings, state: ServerState) -> "DrainingServer":
    """The server of one application."""
    config = make_config(
        Front(settings, state.engine.metrics.registry, error_forms()),
        create_app(
            state,
            WebPages(
                host=settings.host,
                has_keys=bool(state.api_keys),
                allowed_hosts=settings.allowed_hosts,
                cors_origins=settings.cors_origins,
            ),
            settings.mcp_servers,
        ),
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_WORDS_S,
    )
    return DrainingServer(config, state, settings.drain_timeout_s, settings.lame_duck_s)


class OrderlyServer(uvicorn.Server):
    """Signals make it drain, and no signal is raised again at the end: the exit is orderly.

    With nothing to do it ends in a millisecond: another model may wait for its memory.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signal = asyncio.Event()  # that on_tick has not seen yet

    def on_signal(self, sig: int, frame: FrameType | None) -> None:
        """As ``handle_exit``, which the next tick sees now."""
        self.handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._signal.set)

    async def main_loop(self) -> None:
        """Ten ticks a second, and one after a signal, until one says that it is time to end."""
        self._loop = asyncio.get_running_loop()
        counter = 0
        while not await self.on_tick(counter):
            counter = (counter + 1) % TICKS
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._signal.wait(), TICK_S)
            self._signal.clear()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and end when what is sent is out, or takes too long."""
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        state, pause = self.server_state, FIRST_PAUSE_S
        deadline = time.monotonic() + (self.config.timeout_graceful_shutdown or 0)
        while (state.connections or state.tasks) and time.monotonic() < deadline:
            await asyncio.sleep(pause)
            pause = min(2 * pause, TICK_S)
        for task in list(state.tasks):
            task.cancel()
        await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As the base class, but for the end."""
        # Python lets only the main thread handle signals; elsewhere somebody else must.
        is_main = threading.current_thread() is threading.main_thread()
        handled = (signal.SIGTERM, signal.SIGINT) if is_main else ()
        before = {number: signal.signal(number, self.on_signal) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class DrainingServer(OrderlyServer):
    """After the first signal it is not ready, but goes on answering until nothing is left to do.

    For ``lame_duck_s`` it takes new requests too: those that load balancers send which have not
    noticed yet.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        drain_timeout_s: float,
        lame_duck_s: float = 0.0,
    ) -> None:
        super().__init__(config)
        self._state = state
        self._drain_timeout_s = drain_timeout_s
        self._lame_duck_s = lame_duck_s
        self._refuse_at = 0.0
        self._deadline: float | None = None
        self._signals: list[str] = []  # that no line of the log has told of yet
        self._has_told = False
        self._last_load_at = time.monotonic()
        self._last_load = state.engine.metrics.load()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; a second signal ends at once."""
        # A signal may come while this thread writes a line, so the next tick tells of it.
        self._signals.append(signal.Signals(sig).name)
        if self._deadline is not None:
            self._deadline = self._refuse_at = 0.0
            return
        self._state.phase = Phase.DRAINING
        self._refuse_at = time.monotonic() + self._lame_duck_s
        self._deadline = self._refuse_at + self._drain_timeout_s

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: look whether it is time to go."""
        self._log_signals()
        if self._deadline is not None and self._state.batches is not None:
            self._state.batches.stop()  # the next server goes on
        is_refusing = time.monotonic() >= self._refuse_at
        if self._deadline is not None and is_refusing and not self.should_exit:
            engine = self._state.engine
            engine.stop_accepting()
            # What is compiled or rendered now would come too late for the engine.
            await self._state.sandbox.close()
            if time.monotonic() >= self._deadline and engine.unfinished:
                logger.warning("%d sequences have not ended in time", engine.unfinished)
                await asyncio.to_thread(engine.stop)  # their clients are told why
            self.should_exit = not engine.unfinished
        if counter % ACTIVITY_TICKS == 0:
            self._log_activity()
        return await super().on_tick(counter)

    def _log_signals(self) -> None:
        while self._signals:
            name, is_first = self._signals.pop(0), not self._has_told
            self._has_told = True
            running = int(self._state.engine.metrics.load().running)
            waiting = max(0, self._state.engine.unfinished - running)
            if is_first:
                logger.info(
                    "%s: stopping, %d running, %d waiting; new requests are refused in %g s"
                    " (lame_duck_s), answers have %g s from then on (drain_timeout_s),"
                    " a second signal ends them at once",
                    *(name, running, waiting, self._lame_duck_s, self._drain_timeout_s),
                )
            else:
                logger.warning(
                    "%s again: %d running, %d waiting, all cut off",
                    *(name, running, waiting),
                )

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
