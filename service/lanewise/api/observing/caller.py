"""The sender of a request, and what is told of it: headers for the client, lines in the log."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.types import Scope

from lanewise.api.http.limits import Hold
from lanewise.api.observing.record import Record

logger = logging.getLogger(__name__)

HEADER = b"x-lanewise-warning"
MAX_NOTICES = 8
MAX_CHARACTERS = 300  # of one


@dataclass(slots=True)
class Caller:
    """The sender of one request; the middleware makes it, ``caller_of`` finds it."""

    number: int  # the same for all requests of one key
    is_admin: bool
    tenant: str  # of the key alone, so the same after a restart
    hold: Hold  # what the request makes the server hold
    is_background: bool = False  # of a batch: everybody else goes first
    trace_id: str | None = None  # None: traces are off
    traceparent: bytes | None = None  # of its span, for what it asks of others
    record: Record | None = None  # of a request that generates
    n_encoded: int = 0  # tokens of texts that were read by a model that is pooled
    notices: list[str] = field(default_factory=list)

    @property
    def client(self) -> int:
        """Its number in the engine: what it does in the background takes nothing of its share."""
        return ~self.number if self.is_background else self.number

    def tell(self, text: str) -> None:
        """Tell the client, and the log; what is more than a few is counted only."""
        shown = "".join(c if c.isascii() and c.isprintable() else ascii(c)[1:-1] for c in text)
        self.notices.append(shown[:MAX_CHARACTERS])
        if len(self.notices) <= MAX_NOTICES:
            logger.info("%s", self.notices[-1])

    def tell_unknown(self, names: Sequence[str]) -> None:
        """Tell the client that fields of its body are ignored, if there are any."""
        if names:
            self.tell(f"not known here, and ignored: {', '.join(names)}")

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers with what the client is to be told."""
        told = self.notices[:MAX_NOTICES]
        if len(self.notices) > MAX_NOTICES:
            told.append(f"{len(self.notices) - MAX_NOTICES} more")
        return [(HEADER, text.encode()) for text in told]


def caller_of(scope: Scope) -> Caller:
    """The sender of the request that has this scope."""
    caller: Caller = scope["caller"]
    return caller
