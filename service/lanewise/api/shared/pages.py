"""Pages of lists, as OpenAI's clients ask for them: ``limit``, ``after`` and ``order``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from starlette.requests import Request

from lanewise.api.errors import BadRequestError, cut

ORDERS = ("asc", "desc")
SHOWN = 64


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is asked for."""

    limit: int
    after: str | None
    newest_first: bool

    @classmethod
    def of(cls, request: Request, usual: int, most: int) -> Self:
        """What a request's query says, or a BadRequestError."""
        asked = request.query_params
        given, order = asked.get("limit", str(usual)), asked.get("order", "desc")
        limit = int(given) if given.isascii() and given.isdigit() and len(given) < 7 else 0
        if not 1 <= limit <= most:
            shown = cut(given, SHOWN)
            raise BadRequestError(f"limit: {shown!r}; accepted: 1 to {most}", param="limit")
        if order not in ORDERS:
            shown = cut(order, SHOWN)
            raise BadRequestError(f"order: {shown!r}; accepted: asc, desc", param="order")
        return cls(limit, asked.get("after") or None, order == "desc")

    def unknown(self) -> BadRequestError:
        """What is said where nothing has the id after which the page begins."""
        shown = cut(self.after or "", SHOWN)
        return BadRequestError(f"after: there is no {shown!r}", param="after")


def listed(items: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A page of a list, of whose items one more than ``limit`` was looked for."""
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }
