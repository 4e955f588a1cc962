"""What all connections of a server share: settings, budgets, and a look at each now and then."""

import asyncio
from typing import Protocol

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Receive, Scope, Send

from lanewise.api.http.error_forms import ErrorForms
from lanewise.api.http.files import places
from lanewise.api.http.limits import DEFAULT_BYTES, Hold, Refusals, RequestMemory, watch
from lanewise.settings import Settings

SLOWEST_SWEEP_S = 0.5


class Watched(Protocol):
    """A connection, as far as it is looked after."""

    def check(self, now: float) -> None:
        """Give up what has taken too long."""

    @property
    def n_requests(self) -> int:
        """Heads of requests that have been complete."""

    def gives_way(self, now: float) -> bool:
        """Close for the sake of another, if there is no request yet; whether it did."""


class Front:
    """What all connections of a server share."""

    def __init__(
        self, settings: Settings, registry: CollectorRegistry, errors: ErrorForms | None = None
    ) -> None:
        self.settings = settings
        self.places = places(settings.max_connections)
        self.errors = errors or ErrorForms({})
        self.memory = RequestMemory(settings.request_memory or DEFAULT_BYTES)
        self.refusals = Refusals(registry)
        self._unsent: list[Hold] = []  # of answers that are made
        self._connections: dict[Watched, None] = {}  # the oldest first
        self._sweep: asyncio.TimerHandle | None = None
        times = (settings.head_timeout_s, settings.body_timeout_s, settings.send_timeout_s)
        self._period = min([t / 4 for t in times if t], default=SLOWEST_SWEEP_S)
        self._period = min(self._period, SLOWEST_SWEEP_S)
        watch(
            registry,
            "lanewise_http_connections",
            "Open connections.",
            lambda: len(self._connections),
        )
        watch(
            registry,
            "lanewise_request_memory_bytes",
            "Bytes that requests have brought and had made, beyond 64 KiB of each.",
            lambda: self.memory.used,
        )

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application; what a request holds is given back when its answer ends."""

        async def release_after(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await app(scope, receive, send)
            finally:
                if scope["type"] == "http" and not scope["hold"].let_go():
                    self._unsent.append(scope["hold"])

        return release_after

    def add(self, connection: Watched, loop: asyncio.AbstractEventLoop) -> int:
        """Look after a connection from now on; how many there are."""
        self._connections[connection] = None
        if self._sweep is None:
            self._sweep = loop.call_later(self._period, self._look_at_all, loop)
        return len(self._connections)

    def remove(self, connection: Watched) -> None:
        """It is closed."""
        self._connections.pop(connection, None)

    def make_room(self, new: Watched, now: float) -> bool:
        """Close the oldest connection that has no request yet; False if all others have one.

        First of those that never had one, then of those that are kept for another.
        """
        others = [connection for connection in self._connections if connection is not new]
        others.sort(key=lambda connection: connection.n_requests > 0)
        return any(connection.gives_way(now) for connection in others)

    def _look_at_all(self, loop: asyncio.AbstractEventLoop) -> None:
        # One look at all of them costs less than a timer for each request.
        now = loop.time()
        for connection in list(self._connections):
            connection.check(now)
        self._unsent = [hold for hold in self._unsent if not hold.let_go()]
        again = bool(self._connections or self._unsent)
        self._sweep = loop.call_later(self._period, self._look_at_all, loop) if again else None
