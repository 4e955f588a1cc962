"""Reads a form whose one file goes to the disk as it arrives; no more than a piece is in memory."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from lanewise.api.errors import BadRequestError, BodyTooLargeError, cut
from lanewise.api.observing.caller import caller_of
from lanewise.records.files import Incoming

FILE = "file"  # the part that is one
MAX_FIELDS, MAX_FIELD_BYTES = 32, 4096
MAX_NAME = 255  # characters of a file's name
PIECE = 1 << 20  # bytes that are written at once
AROUND = 64 << 10  # bytes of a form beside its file
SHOWN = 60


@dataclass(slots=True)
class Form:
    """What a form said."""

    fields: dict[str, str] = field(default_factory=dict)
    name: str | None = None  # of the file; None: there was none


async def read_form(request: Request, most: int, begin: Callable[[], Incoming]) -> "Upload":
    """Everything of a form, its file on the disk but not finished; the caller closes it.

    ``most`` bytes is the largest file. ApiError for what is no such form, and whatever ``begin``
    and the file raise.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise BadRequestError(
            "the body is not a form; accepted: multipart/form-data with the parts file and purpose"
        )
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:20]) > most + AROUND:
        raise BodyTooLargeError(
            f"the body has {announced[:20]} bytes; accepted: a file of at most {most} bytes"
            " (max_file_bytes)"
        )
    upload = Upload(boundary, begin)
    try:
        await upload.read(request)
    except BaseException:
        upload.close()
        raise
    return upload


class Upload:
    """A form while it arrives."""

    def __init__(self, boundary: bytes, begin: Callable[[], Incoming]) -> None:
        self.form = Form()
        self.incoming: Incoming | None = None
        self._begin = begin
        self._names = [b"", b""]  # of a header and its value
        self._disposition = b""
        self._part: str | None = None  # the field that is read; None: none
        self._value = bytearray()
        self._is_file = self._is_over = False
        self._unwritten = bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._part_begins,
                    "on_header_field": lambda data, start, end: self._add(0, data[start:end]),
                    "on_header_value": lambda data, start, end: self._add(1, data[start:end]),
                    "on_header_end": self._header_ends,
                    "on_headers_finished": self._data_begins,
                    "on_part_data": self._data,
                    "on_part_end": self._part_ends,
                    "on_end": self._ends,
                },
            )
        except FormParserError as error:
            raise BadRequestError(f"the form cannot be read: {error}") from None

    async def read(self, request: Request) -> None:
        """Take the body to its end."""
        hold, more_time = caller_of(request.scope).hold, request.scope.get("more_time")
        more = True
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise BadRequestError("the client left before the body was complete")
            if hold.refusal is not None:
                raise hold.refusal()
            more = message["more_body"]
            try:
                self._parser.write(message["body"])
            except FormParserError as error:
                raise BadRequestError(f"the form cannot be read: {error}") from None
            hold.body_is_read()  # it is on the disk, or about to be
            if len(self._unwritten) >= PIECE or (not more and self.form.name is not None):
                await self._write()
                if more_time is not None:
                    more_time()
        if not self._is_over:
            raise BadRequestError("the form ends before its last boundary")
        if self.incoming is None:
            raise BadRequestError("file is required: a part with a filename", param=FILE)

    def close(self) -> None:
        """Forget the file, if it was not finished."""
        if self.incoming is not None:
            self.incoming.close()

    async def _write(self) -> None:
        piece, self._unwritten = bytes(self._unwritten), bytearray()
        incoming = self.incoming
        if incoming is None:
            incoming = self.incoming = await asyncio.to_thread(self._begin)
        if piece:
            await asyncio.to_thread(incoming.write, piece)

    # What the parser calls.

    def _part_begins(self) -> None:
        self._disposition, self._names = b"", [b"", b""]

    def _add(self, place: int, data: bytes) -> None:
        self._names[place] += data

    def _header_ends(self) -> None:
        name, value = self._names
        if name.lower() == b"content-disposition":
            self._disposition = value
        self._names = [b"", b""]

    def _data_begins(self) -> None:
        kind, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if kind != b"form-data" or not name:
            raise BadRequestError("the form has a part without a name")
        self._is_file = name == FILE
        if self._is_file:
            if self.form.name is not None:
                raise BadRequestError("file: the form has two", param=FILE)
            if b"filename" not in options:
                raise BadRequestError("file: the part has no filename", param=FILE)
            self.form.name = _plain(options[b"filename"])
            return
        if name in self.form.fields or len(self.form.fields) >= MAX_FIELDS:
            shown = cut(name, SHOWN)
            raise BadRequestError(f"{shown}: the form has it twice, or too many fields")
        self._part, self._value = name, bytearray()

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._unwritten += data[start:end]
            return
        self._value += data[start:end]
        if len(self._value) > MAX_FIELD_BYTES:
            name = cut(self._part or "", SHOWN)
            raise BadRequestError(
                f"{name}: more than {MAX_FIELD_BYTES} bytes, which is the most of a field",
                param=name,
            )

    def _part_ends(self) -> None:
        if self._part is not None:
            self.form.fields[self._part] = self._value.decode("utf-8", "replace")
        self._part = None

    def _ends(self) -> None:
        self._is_over = True


def _plain(name: bytes) -> str:
    """A file's name as it is shown: printable, without a path, of some length."""
    text = name.decode("utf-8", "replace")
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return cut(shown.replace("\\", "/").rpartition("/")[2], MAX_NAME) or "file"
