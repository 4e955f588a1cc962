"""``/v1/batches``: create, describe, list and cancel, as OpenAI's clients do."""

import asyncio
import re
from typing import Annotated, Any

from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.batches.paths import OPENAI_PATHS
from lanewise.api.batches.runner import Runner
from lanewise.api.errors import BadRequestError, NotFoundError, cut
from lanewise.api.files.endpoints import BATCH, check_keep_s, files_of, no_file, on_disk
from lanewise.api.generation.body import read_request
from lanewise.api.observing.caller import caller_of
from lanewise.api.schemas import Strict
from lanewise.api.shared.pages import Page, listed
from lanewise.api.shared.state import ServerState
from lanewise.batches.table import Asked, Row, shown

FORM = "openai"
SHOWN = 64
USUAL, MOST = 20, 100  # batches of a page
WINDOW = re.compile(r"([1-9]\d{0,2})([hd])")
HOUR_S, MOST_WINDOW_S = 3600, 30 * 86400

Key = Annotated[str, StringConstraints(max_length=64)]
Value = Annotated[str, StringConstraints(max_length=512)]


class ExpiresAfter(Strict):
    """When files go that a batch makes."""

    anchor: str
    seconds: int


class BatchRequest(Strict):
    """Body of ``POST /v1/batches``."""

    input_file_id: str
    endpoint: str
    completion_window: str = Field("24h", description="24h, or any hours or days up to 30d.")
    metadata: Annotated[dict[Key, Value], Field(max_length=16)] | None = None
    output_expires_after: ExpiresAfter | None = None


def runner_of(state: ServerState) -> Runner:
    """What runs the server's batches; endpoints without it are never called."""
    assert state.batches is not None
    return state.batches


def window_s(given: str) -> int:
    """Seconds in which a batch is to be done."""
    found = WINDOW.fullmatch(given)
    seconds = int(found[1]) * HOUR_S * (24 if found[2] == "d" else 1) if found else 0
    if not 0 < seconds <= MOST_WINDOW_S:
        raise BadRequestError(
            f"completion_window: {cut(given, SHOWN)!r}; accepted: 24h, or hours or days up to 30d",
            param="completion_window",
        )
    return seconds


@on_disk
async def create_batch(request: Request, state: ServerState) -> Response:
    """Have the requests of a file answered."""
    call = await read_request(request, state, BatchRequest)
    body, tenant = call.ask, call.caller.tenant
    if body.endpoint not in OPENAI_PATHS:
        raise BadRequestError(
            f"endpoint: {cut(body.endpoint, SHOWN)!r}; accepted: {', '.join(OPENAI_PATHS)}",
            param="endpoint",
        )
    source = await asyncio.to_thread(files_of(state).find, tenant, body.input_file_id)
    if source is None:
        raise no_file(body.input_file_id, "input_file_id")
    if source.purpose != BATCH:
        raise BadRequestError(
            f"input_file_id: the file's purpose is {source.purpose}; accepted: {BATCH}",
            param="input_file_id",
        )
    keep = body.output_expires_after
    asked = Asked(
        tenant=tenant,
        form=FORM,
        endpoint=body.endpoint,
        input_file_id=source.id,
        window=body.completion_window,
        window_s=window_s(body.completion_window),
        metadata=body.metadata,
        output_keep_s=None if keep is None else check_keep_s(keep.anchor, keep.seconds),
    )
    try:
        row = await runner_of(state).create(asked, files_of(state).path_of(source.id))
    except FileNotFoundError:  # deleted since
        raise no_file(source.id, "input_file_id") from None
    return JSONResponse(shown(row))


async def find_batch(request: Request, state: ServerState, form: str) -> Row:
    """The batch that a path names; NotFoundError if the caller's key has none of this id."""
    name, tenant = request.path_params["batch_id"], caller_of(request.scope).tenant
    row = await asyncio.to_thread(runner_of(state).table.find, tenant, form, name)
    if row is None:
        raise NotFoundError(f"No batch found with id {cut(name, SHOWN)!r}.", param="batch_id")
    return row


async def get_batch(request: Request, state: ServerState) -> Response:
    """How far a batch is."""
    return JSONResponse(shown(await find_batch(request, state, FORM)))


async def list_batches(request: Request, state: ServerState) -> Response:
    """The batches of the caller's key, the newest first."""
    page, tenant = Page.of(request, USUAL, MOST), caller_of(request.scope).tenant
    rows = await rows_of(state, tenant, FORM, page)
    return JSONResponse(listed([shown(row) for row in rows], page.limit))


async def rows_of(
    state: ServerState, tenant: str, form: str, page: Page, before: str | None = None
) -> list[Row]:
    """The batches of a page, and one more if there are more."""
    table = runner_of(state).table
    more: dict[str, Any] = {"after": page.after, "before": before, "limit": page.limit + 1}
    try:
        return await asyncio.to_thread(table.page, tenant, form, **more)
    except KeyError:
        raise page.unknown() from None


@on_disk
async def cancel_batch(request: Request, state: ServerState) -> Response:
    """End a batch before its time; what is answered by then is kept."""
    row = await find_batch(request, state, FORM)
    await cancel_row(row, state)
    return JSONResponse(shown(await asyncio.to_thread(runner_of(state).table.get, row["id"])))


async def cancel_row(row: Row, state: ServerState) -> None:
    """End a batch; BadRequestError if it has ended."""
    if await runner_of(state).cancel(row["id"]) or row["status"] in ("cancelling", "finalizing"):
        return
    raise BadRequestError(f"Cannot cancel a batch with status {row['status']!r}.", param="batch_id")
