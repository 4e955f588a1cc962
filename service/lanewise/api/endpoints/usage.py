"""``GET /v1/usage``: what keys have used, by day and model."""

import asyncio
import datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.errors import BadRequestError, cut
from lanewise.api.observing.caller import caller_of
from lanewise.api.shared.state import ServerState
from lanewise.records.reports import as_csv, as_objects

FORMATS = ("json", "csv")
SHOWN = 40
MAX_ROWS = 20_000  # of an answer: 4 MB


async def usage(request: Request, state: ServerState) -> Response:
    """Requests and tokens of each day, key and model: of all keys for administrators.

    The query may have ``first_day``, ``last_day`` (YYYY-MM-DD, UTC) and ``format`` (json, csv).
    """
    query = request.query_params
    first, last = (_day(query.get(name), name) for name in ("first_day", "last_day"))
    wanted = query.get("format", FORMATS[0])
    if wanted not in FORMATS:
        raise BadRequestError(
            f"format: {cut(wanted, SHOWN)!r}; accepted: {', '.join(FORMATS)}", param="format"
        )
    spending, caller = state.spending, caller_of(request.scope)
    assert spending is not None
    assert spending.store is not None
    await spending.write()
    sees_all = caller.is_admin or not state.api_keys
    tenant = None if sees_all else caller.tenant
    rows = await asyncio.to_thread(spending.store.rows, first, last, tenant, MAX_ROWS + 1)
    if len(rows) > MAX_ROWS:
        raise BadRequestError(
            f"first_day: there are more than {MAX_ROWS} lines; accepted: fewer days, or lanewise"
            " usage on the server's machine",
            param="first_day",
        )
    if wanted == "csv":
        return Response(as_csv(rows), media_type="text/csv; charset=utf-8")
    return JSONResponse({"object": "list", "data": as_objects(rows)})


def _day(given: str | None, name: str) -> str | None:
    if given is None:
        return None
    try:
        return datetime.date.fromisoformat(given).isoformat()
    except ValueError:
        shown = cut(given, SHOWN)
        raise BadRequestError(
            f"{name}: {shown!r}; accepted: a day as YYYY-MM-DD", param=name
        ) from None
