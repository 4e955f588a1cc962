"""What a client is told beside its answer: a header for each thing, and a line in the log."""

import logging
from collections.abc import Sequence

from starlette.types import Scope

logger = logging.getLogger(__name__)

HEADER = b"x-lanewise-warning"
MAX_NOTICES = 8
MAX_CHARACTERS = 300  # of one


def add_notice(scope: Scope, text: str) -> None:
    """Tell the client of a request, and the log; what is more than a few is counted only."""
    notices: list[str] = scope.setdefault("notices", [])
    shown = "".join(c if c.isascii() and c.isprintable() else ascii(c)[1:-1] for c in text)
    notices.append(shown[:MAX_CHARACTERS])
    if len(notices) <= MAX_NOTICES:
        logger.info("%s", notices[-1])


def add_unknown(scope: Scope, names: Sequence[str]) -> None:
    """Tell the client that fields of its body are ignored, if there are any."""
    if names:
        add_notice(scope, f"not known here, and ignored: {', '.join(names)}")


def notice_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Headers with what the client of a request is to be told."""
    notices: list[str] = scope.get("notices", [])
    told = notices[:MAX_NOTICES]
    if len(notices) > MAX_NOTICES:
        told.append(f"{len(notices) - MAX_NOTICES} more")
    return [(HEADER, text.encode()) for text in told]
