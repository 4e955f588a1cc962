"""One HTTP exchange written by hand: requests that no client library would send."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadtests.http_stream import ChunkedBody

BUSY = (429, 503, 504)  # a server that is full may say so, and when to come back
PIECE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; status 0 is a connection that closed without an answer, -1 an open one."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True  # as long as its head announced, or its last chunk came

    @property
    def text(self) -> str:
        """The body."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body's value, None if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


@dataclass(slots=True)
class Record:
    """What became of requests: how often each outcome, and what was wrong."""

    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def judge(self, what: str, answer: Answer, accepted: tuple[int, ...]) -> None:
        """Count an answer; a problem if its status is none of these, or if it is not complete."""
        names = {0: "closed", -1: "open"}
        self.outcomes[names.get(answer.status, str(answer.status))] += 1
        if problem := fault(answer, accepted):
            self.problems.append(f"{what}: {problem}")


def fault(answer: Answer, accepted: tuple[int, ...]) -> str | None:
    """What is wrong with an answer, None if nothing is."""
    if answer.status in BUSY:
        return None if "retry-after" in answer.headers else f"{answer.status} without Retry-After"
    if answer.status not in accepted:
        said = "closed" if answer.status == 0 else answer.status
        return f"{said} {answer.text[-200:]!r}"
    if answer.status == 0:
        return None
    if not answer.complete:
        return f"{answer.status} with an unfinished body: {answer.text[-200:]!r}"
    if answer.status == 200 and b'{"error"' in answer.body:
        return f"an error inside a 200: {answer.text[-200:]!r}"
    value = answer.json() if answer.status in (400, 401, 403, 404, 413, 500) else None
    if value is not None and not (isinstance(value, dict) and "message" in value.get("error", ())):
        return f"{answer.status} without an error object: {answer.text[-200:]!r}"
    return None


def head(
    path: str, length: int | None, key: str | None = None, more: Mapping[str, str] | None = None
) -> bytes:
    """The head of a POST that asks to close the connection; chunked without a length."""
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = [f"POST {path} HTTP/1.1", "Host: loadtests", "Connection: close", framing]
    lines += ["Content-Type: application/json"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    lines += [f"{name}: {value}" for name, value in (more or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def post(path: str, body: object, key: str | None = None) -> bytes:
    """A whole request with a JSON body, or with bytes as they are."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, len(raw), key) + raw


async def exchange(port: int, raw: bytes, timeout_s: float = 120.0) -> Answer:
    """Send bytes and read to the end of the connection.

    An answer that comes before all is sent ends the sending. TimeoutError if the connection is
    still open after ``timeout_s``, OSError if there is none.
    """
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        reading = asyncio.create_task(_read_all(reader))
        try:
            await _send(writer, raw, reading)
            return parse(await reading)
        finally:
            reading.cancel()
            writer.close()


async def _send(writer: asyncio.StreamWriter, raw: bytes, reading: "asyncio.Task[bytes]") -> None:
    view = memoryview(raw)
    for start in range(0, len(raw), PIECE_BYTES):
        if reading.done():
            return
        writer.write(view[start : start + PIECE_BYTES])
        drained = asyncio.ensure_future(writer.drain())
        try:
            await asyncio.wait({drained, reading}, return_when=asyncio.FIRST_COMPLETED)
            if drained.done() and drained.exception() is not None:
                return
        finally:
            drained.cancel()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    """Up to the end, or to the reset with which a server cuts a request short."""
    parts = []
    try:
        while part := await reader.read(1 << 16):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def parse(raw: bytes) -> Answer:
    """The first answer among what a connection gave."""
    top, separator, body = raw.partition(b"\r\n\r\n")
    if not separator:
        return Answer(0, {}, raw, complete=False)
    status, *lines = top.decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    complete = True
    if "chunked" in headers.get("transfer-encoding", ""):
        chunked = ChunkedBody()
        body = chunked.feed(body)
        complete = chunked.ended
    elif "content-length" in headers:
        complete = len(body) >= int(headers["content-length"])
    return Answer(int(status.split()[1]), headers, body, complete)
