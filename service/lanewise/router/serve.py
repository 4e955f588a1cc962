"""``lanewise serve --models``: the router's own server, and its end."""

import asyncio
import logging
import signal
import socket
import time
from types import FrameType

import uvloop
from prometheus_client import CollectorRegistry
from starlette.middleware.cors import CORSMiddleware

from lanewise import __version__, host
from lanewise.api.endpoints import documents, guide, page
from lanewise.api.endpoints.paths import Paths
from lanewise.api.endpoints.table import ENDPOINTS, error_forms
from lanewise.api.http.front import Front
from lanewise.api.http.keys import Keys
from lanewise.api.http.web_config import Config, make_config
from lanewise.api.http.web_pages import WebPages
from lanewise.api.http_server import KEEP_ALIVE_S, LAST_WORDS_S, OrderlyServer
from lanewise.api.middleware import RequestMiddleware
from lanewise.api.observing.tracing import Tracer
from lanewise.router.app import Router
from lanewise.router.endpoints import Owned
from lanewise.router.entries import Catalogue, folder_catalogue, read_catalogue
from lanewise.router.fleet import Fleet
from lanewise.router.folder import socket_folder
from lanewise.router.process import Launcher
from lanewise.settings import Settings, SettingsError

logger = logging.getLogger(__name__)

RESERVE = 16  # one part of the memory is for the router and the system


def catalogue_of(settings: Settings) -> Catalogue:
    """The models of ``--models`` or ``--models-dir``; SettingsError for what cannot be."""
    sources = {name: getattr(settings, name) for name in ("models", "models_dir", "model")}
    first, *others = [name for name, value in sources.items() if value is not None]
    if others:
        beside = others[0]
        raise SettingsError(
            f"{first}: {sources[first]!r} beside {beside} {sources[beside]!r};"
            " accepted: one of them"
        )
    if settings.models_dir is not None:
        return folder_catalogue(settings.models_dir, settings)
    assert settings.models is not None
    return read_catalogue(settings.models, settings)


def serve(
    settings: Settings,
    asked: Settings,
    catalogue: Catalogue,
    limit: host.MemoryLimit,
    listener: socket.socket,
) -> int:
    """Serve until told to stop; the exit status.

    ``settings`` have the keys of files too; the servers read those files as ``asked`` for.
    """
    budget = catalogue.memory or limit.n_bytes - limit.n_bytes // RESERVE
    with socket_folder() as folder:
        logger.info(
            "serving %s on %s:%d, within %s of memory",
            ", ".join(name for entry in catalogue.entries for name in entry.names),
            *(settings.host, listener.getsockname()[1], host.format_size(budget)),
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            launcher = Launcher(asked, folder)
            runner.run(route(settings, catalogue, launcher, budget, listener))
    logger.info("stopped")
    return 0


async def route(
    settings: Settings,
    catalogue: Catalogue,
    launcher: Launcher,
    budget: int,
    listener: socket.socket,
) -> None:
    """Answer until told to stop, and end all models then."""
    fleet = Fleet(catalogue, launcher, budget)
    endpoint = settings.otlp_traces_endpoint
    tracer = Tracer(endpoint, __version__) if endpoint else None
    server = make_server(settings, fleet, tracer)
    fleet.start()
    try:
        await server.serve(sockets=[listener])
    finally:
        await fleet.close()
        if tracer is not None:
            tracer.close()


def make_server(settings: Settings, fleet: Fleet, tracer: Tracer | None) -> "RoutingServer":
    """The server around the application."""
    registry = CollectorRegistry()
    errors, paths = error_forms(), Paths(ENDPOINTS)
    front = Front(settings, registry, errors)
    keys = bool(settings.api_key or settings.admin_api_key)
    pages = WebPages(
        host=settings.host,
        has_keys=bool(settings.api_key),
        allowed_hosts=settings.allowed_hosts,
        cors_origins=settings.cors_origins,
    )
    router = Router(fleet, settings.max_body_bytes, page.Page(settings.mcp_servers))
    app = RequestMiddleware(
        router,
        keys=Keys(settings.api_key, settings.admin_api_key),
        pages=pages,
        # Documentation and page say nothing that the source does not.
        public={
            *(*documents.PATHS, *page.FILES, *guide.PATHS),
            *(endpoint.path for endpoint in ENDPOINTS if endpoint.public),
        },
        canonical=paths.canonical,
        errors=errors,
        registry=registry,
        asked=[(e.method, e.path) for e in ENDPOINTS if e.speaks],
        tracer=tracer,
    )
    # Last, for it has to know the metrics of all others.
    router.owned = Owned(fleet, registry, has_keys=keys)
    config = make_config(
        front,
        # Outermost, as in a server of one model.
        CORSMiddleware(app, **pages.cors),
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_WORDS_S,
    )
    return RoutingServer(config, router, settings)


class RoutingServer(OrderlyServer):
    """After the first signal it is not ready, but goes on until nothing is left to answer."""

    def __init__(self, config: Config, router: Router, settings: Settings) -> None:
        super().__init__(config)
        self._router, self._settings = router, settings
        self._refuse_at = 0.0
        self._deadline: float | None = None
        self._signals: list[str] = []

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; a second signal ends at once."""
        del frame
        self._signals.append(signal.Signals(sig).name)
        if self._deadline is not None:
            self._refuse_at = self._deadline = 0.0
            return
        self._router.owned.is_draining = True
        self._refuse_at = time.monotonic() + self._settings.lame_duck_s
        self._deadline = self._refuse_at + self._settings.drain_timeout_s

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: look whether it is time to go."""
        if self._signals:
            self._router.owned.fleet.tell()  # streams of events end
        while self._signals:
            name = self._signals.pop(0)
            logger.info("%s: stopping, %d requests are answered", name, self._router.answering)
        now = time.monotonic()
        if self._deadline is not None and now >= self._refuse_at and not self.should_exit:
            self._router.is_refusing = True
            self.should_exit = not self._router.answering or now >= self._deadline
        return await super().on_tick(counter)
