"""``/v1/files``: upload, list, describe, read and delete."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import Any, BinaryIO

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from lanewise.api.errors import (
    BadRequestError,
    BodyTooLargeError,
    ForbiddenError,
    NoRoomError,
    NotFoundError,
    cut,
)
from lanewise.api.files.form import Form, read_form
from lanewise.api.observing.caller import caller_of
from lanewise.api.shared.pages import Page, listed
from lanewise.api.shared.state import ServerState
from lanewise.records.files import (
    DAY_S,
    DiskFullError,
    FileStore,
    QuotaError,
    StoredFile,
    TooLargeError,
)

BATCH, USER_DATA, BATCH_OUTPUT = "batch", "user_data", "batch_output"
PURPOSES = (BATCH, USER_DATA)  # of what clients send
MOST_LISTED = 10_000
PIECE = 256 << 10  # bytes that are read at once
SHOWN = 64  # characters of an id that is not here
LEAST_KEPT_S, MOST_KEPT_S = 3600, 30 * DAY_S

Handler = Callable[[Request, ServerState], Awaitable[Response]]


def on_disk(handler: Handler) -> Handler:
    """A handler whose trouble with the disk is told as errors of the API."""

    @wraps(handler)
    async def answer(request: Request, state: ServerState) -> Response:
        try:
            return await handler(request, state)
        except QuotaError as error:
            raise ForbiddenError(str(error), code="quota_exceeded") from None
        except TooLargeError as error:
            raise BodyTooLargeError(str(error), param="file") from None
        except DiskFullError:
            # OpenAI's clients ask again after any 5xx, unless they are told not to.
            raise NoRoomError(
                "the disk of data_dir is full", headers={"x-should-retry": "false"}
            ) from None

    return answer


def files_of(state: ServerState) -> FileStore:
    """The server's files; endpoints without them are never called."""
    assert state.files is not None
    return state.files


def shown(file: StoredFile) -> dict[str, Any]:
    """A file as OpenAI's clients read it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


@on_disk
async def upload_file(request: Request, state: ServerState) -> Response:
    """Keep a file: multipart/form-data with file, purpose and perhaps expires_after."""
    store, tenant = files_of(state), caller_of(request.scope).tenant
    upload = await read_form(request, store.limits.file_bytes, lambda: store.begin(tenant))
    try:
        form, incoming = upload.form, upload.incoming
        assert form.name is not None
        assert incoming is not None
        purpose = form.fields.get("purpose")
        if purpose not in PURPOSES:
            said = "it is missing" if purpose is None else repr(cut(purpose, SHOWN))
            raise BadRequestError(
                f"purpose: {said}; accepted: {', '.join(PURPOSES)}", param="purpose"
            )
        kept = await asyncio.to_thread(incoming.finish, form.name, purpose, _keep_s(form))
    finally:
        upload.close()
    return JSONResponse(shown(kept))


def _keep_s(form: Form) -> int | None:
    """For how long a form wants its file to be kept, in seconds; None: it does not say."""
    named = {name: text for name, text in form.fields.items() if name.startswith("expires_after")}
    if not named:
        return None
    return check_keep_s(named.get("expires_after[anchor]"), named.get("expires_after[seconds]", ""))


def check_keep_s(anchor: object, seconds: object) -> int:
    """The seconds of an ``expires_after``; BadRequestError if it cannot be meant."""
    param = "expires_after"
    if anchor != "created_at":
        raise BadRequestError(
            f"{param}.anchor: {cut(str(anchor), SHOWN)!r}; accepted: created_at", param=param
        )
    text = str(seconds)[:SHOWN]
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not LEAST_KEPT_S <= number <= MOST_KEPT_S:
        raise BadRequestError(
            f"{param}.seconds: {text!r}; accepted: {LEAST_KEPT_S} to {MOST_KEPT_S}", param=param
        )
    return number


async def list_files(request: Request, state: ServerState) -> Response:
    """The files of the caller's key, the newest first."""
    store, tenant = files_of(state), caller_of(request.scope).tenant
    page = Page.of(request, MOST_LISTED, MOST_LISTED)
    purpose = request.query_params.get("purpose")
    try:
        found = await asyncio.to_thread(
            store.page,
            tenant,
            purpose=purpose,
            after=page.after,
            limit=page.limit + 1,
            newest_first=page.newest_first,
        )
    except KeyError:
        raise page.unknown() from None
    return JSONResponse(listed([shown(file) for file in found], page.limit))


async def get_file(request: Request, state: ServerState) -> Response:
    """One file, described."""
    return JSONResponse(shown(await find_file(request, state)))


async def find_file(request: Request, state: ServerState) -> StoredFile:
    """The file that a path names; NotFoundError if the caller's key has none of this id."""
    name, tenant = request.path_params["file_id"], caller_of(request.scope).tenant
    found = await asyncio.to_thread(files_of(state).find, tenant, name)
    if found is None:
        raise no_file(name, "file_id")
    return found


def no_file(name: str, param: str) -> NotFoundError:
    """What is said of an id that is none of the caller's."""
    return NotFoundError(f"No such File object: {cut(name, SHOWN)}", param=param)


async def get_file_content(request: Request, state: ServerState) -> Response:
    """The bytes of a file, as they were sent or made."""
    file = await find_file(request, state)
    return await bytes_of(file, state, "application/octet-stream")


async def bytes_of(file: StoredFile, state: ServerState, media_type: str) -> Response:
    """An answer with the bytes of a file, read as its client takes them."""
    path = files_of(state).path_of(file.id)
    try:
        opened = await asyncio.to_thread(path.open, "rb", 0)
    except FileNotFoundError:  # deleted since
        raise no_file(file.id, "file_id") from None
    size = os.fstat(opened.fileno()).st_size
    headers = {"content-length": str(size), "content-disposition": "attachment"}
    return StreamingResponse(_pieces(opened, size), media_type=media_type, headers=headers)


async def _pieces(opened: BinaryIO, size: int) -> AsyncIterator[bytes]:
    with opened:
        while size > 0 and (piece := await asyncio.to_thread(opened.read, min(PIECE, size))):
            size -= len(piece)
            yield piece


@on_disk
async def delete_file(request: Request, state: ServerState) -> Response:
    """Keep a file no longer; a batch that reads it has what it needs."""
    name, tenant = request.path_params["file_id"], caller_of(request.scope).tenant
    if not await asyncio.to_thread(files_of(state).delete, tenant, name):
        raise no_file(name, "file_id")
    return JSONResponse({"id": name, "object": "file", "deleted": True})
