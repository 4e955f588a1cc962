"""``/v1/messages/batches``: the same batches as Anthropic's clients make and read them."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field, StringConstraints
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lanewise.api.batches.endpoints import cancel_row, find_batch, rows_of, runner_of
from lanewise.api.batches.paths import MESSAGES_PATH
from lanewise.api.errors import BadRequestError, NotFoundError, cut
from lanewise.api.files.endpoints import bytes_of, files_of, on_disk
from lanewise.api.generation.body import read_request
from lanewise.api.observing.caller import caller_of
from lanewise.api.schemas import FirstProblemOnly, Strict
from lanewise.api.shared.pages import Page
from lanewise.api.shared.state import ServerState
from lanewise.batches.lines import MAX_LINES
from lanewise.batches.table import CANCELLING, OPEN, Asked, Row
from lanewise.records.files import FileStore

FORM = "anthropic"
WINDOW, WINDOW_S = "24h", 86400
USUAL, MOST = 20, 1000  # batches of a page
PIECE = 1 << 20  # bytes that are written at once
SHOWN = 64


class BatchItem(Strict):
    """One request of a batch."""

    custom_id: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: dict[str, Any] = Field(description="The body of a request for /v1/messages.")


class MessageBatchRequest(Strict):
    """Body of ``POST /v1/messages/batches``."""

    requests: Annotated[
        list[BatchItem], FirstProblemOnly(), Field(min_length=1, max_length=MAX_LINES)
    ]


def shown(row: Row, request: Request) -> dict[str, Any]:
    """A batch as Anthropic's clients read it."""
    is_open, left = row["status"] in OPEN, row["total"] - row["completed"] - row["failed"]
    unanswered = "expired" if row["expired_at"] else "canceled"
    counts = {
        "processing": left if is_open else 0,
        "succeeded": row["completed"],
        "errored": row["failed"] - row["unanswered"],
        "canceled": 0,
        "expired": 0,
        unanswered: row["unanswered"],
    }
    ends = (row[name] for name in ("completed_at", "failed_at", "expired_at", "cancelled_at"))
    status = "canceling" if row["status"] == CANCELLING else "in_progress"
    results = request.url.replace(path=f"{MESSAGES_PATH}/batches/{row['id']}/results", query="")
    return {
        "id": row["id"],
        "type": "message_batch",
        "processing_status": status if is_open else "ended",
        "request_counts": counts,
        "created_at": _time(row["created_at"]),
        "expires_at": _time(row["expires_at"]),
        "ended_at": _time(max((end for end in ends if end is not None), default=None)),
        "cancel_initiated_at": _time(row["cancelling_at"]),
        "archived_at": None,
        "results_url": str(results) if row["output_file_id"] is not None else None,
    }


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


@on_disk
async def create_message_batch(request: Request, state: ServerState) -> Response:
    """Have many messages answered."""
    call = await read_request(request, state, MessageBatchRequest, _check_ids)
    items, tenant = call.ask.requests, call.caller.tenant
    asked = Asked(
        tenant=tenant,
        form=FORM,
        endpoint=MESSAGES_PATH,
        input_file_id="",
        window=WINDOW,
        window_s=WINDOW_S,
        total=len(items),
    )
    with await asyncio.to_thread(files_of(state).begin, tenant) as incoming:
        await asyncio.to_thread(_write, incoming, items)
        row = await runner_of(state).create(asked, incoming.path)
    return JSONResponse(shown(row, request))


def _check_ids(body: MessageBatchRequest) -> None:
    known: set[str] = set()
    for place, item in enumerate(body.requests):
        if item.custom_id in known:
            param = f"requests[{place}].custom_id"
            raise BadRequestError(
                f"{param}: {item.custom_id!r} stands in an earlier request too", param=param
            )
        known.add(item.custom_id)


def _write(incoming: Any, items: Sequence[BatchItem]) -> None:
    piece = bytearray()
    for line in _lines(items):
        piece += line
        if len(piece) >= PIECE:
            incoming.write(bytes(piece))
            piece.clear()
    incoming.write(bytes(piece))


def _lines(items: Sequence[BatchItem]) -> Iterator[bytes]:
    for item in items:
        line = {"custom_id": item.custom_id, "url": MESSAGES_PATH, "body": item.params}
        yield json.dumps(line).encode() + b"\n"


async def get_message_batch(request: Request, state: ServerState) -> Response:
    """How far a batch is."""
    return JSONResponse(shown(await find_batch(request, state, FORM), request))


async def list_message_batches(request: Request, state: ServerState) -> Response:
    """The batches of the caller's key, the newest first."""
    asked, tenant = request.query_params, caller_of(request.scope).tenant
    limit = Page.of(request, USUAL, MOST).limit
    page = Page(limit, asked.get("after_id") or None, newest_first=True)
    before = asked.get("before_id") or None
    rows = await rows_of(state, tenant, FORM, page, before)
    has_more = len(rows) > limit
    # The one that is too many is the farthest from where the page begins.
    rows = rows[-limit:] if before is not None and page.after is None else rows[:limit]
    return JSONResponse(
        {
            "data": [shown(row, request) for row in rows],
            "has_more": has_more,
            "first_id": rows[0]["id"] if rows else None,
            "last_id": rows[-1]["id"] if rows else None,
        }
    )


@on_disk
async def cancel_message_batch(request: Request, state: ServerState) -> Response:
    """End a batch before its time; what is answered by then is kept."""
    row = await find_batch(request, state, FORM)
    await cancel_row(row, state)
    row = await asyncio.to_thread(runner_of(state).table.get, row["id"])
    return JSONResponse(shown(row, request))


@on_disk
async def delete_message_batch(request: Request, state: ServerState) -> Response:
    """Forget a batch that has ended, and its results."""
    row = await find_batch(request, state, FORM)
    if row["status"] in OPEN:
        raise BadRequestError("The batch has not ended; cancel it first.", param="batch_id")
    await asyncio.to_thread(_forget, row, state, files_of(state))
    return JSONResponse({"id": row["id"], "type": "message_batch_deleted"})


def _forget(row: Row, state: ServerState, files: FileStore) -> None:
    if row["output_file_id"] is not None:
        files.delete(row["tenant"], row["output_file_id"])
    runner_of(state).table.delete(row["id"])


async def get_message_batch_results(request: Request, state: ServerState) -> Response:
    """The results of a batch that has ended, a line for each request."""
    row = await find_batch(request, state, FORM)
    if row["status"] in OPEN:
        raise BadRequestError("The batch has not ended: it has no results yet.", param="batch_id")
    name = row["output_file_id"] or ""
    file = await asyncio.to_thread(files_of(state).find, row["tenant"], name)
    if file is None:
        raise NotFoundError(
            f"The results of {cut(row['id'], SHOWN)} are no longer kept.", param="batch_id"
        )
    return await bytes_of(file, state, "application/x-jsonl")
