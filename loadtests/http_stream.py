"""One streamed POST over HTTP/1.1, cheap enough to run beside the server it measures."""

import asyncio
import json
import math
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

EVENT_END = b"\n\n"
DONE = b"[DONE]"
ERROR_PREFIX = b'{"error"'
# A chat's opening chunk, a last chunk without text, and the usage at the end are not tokens.
PARSED_MARKS = tuple(
    mark + space + value
    for mark, value in ((b'"finish_reason":', b'"'), (b'"usage":', b"{"), (b'"choices":', b"[]"))
    for space in (b"", b" ")
)


class StreamError(Exception):
    """A request that did not end as a complete stream; the message says what came instead."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go."""

    host: str
    port: int
    path: str
    tls: bool
    headers: bytes

    @classmethod
    def parse(cls, url: str, path: str, api_key: str | None) -> "Target":
        """The target for ``path`` below a base URL, with or without ``/v1`` at its end."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"--url: {url!r} is not an http:// or https:// address")
        tls = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/v1")
        lines = [f"Host: {parts.netloc}", "Content-Type: application/json"]
        if api_key:
            lines.append(f"Authorization: Bearer {api_key}")
        headers = "".join(f"{line}\r\n" for line in lines).encode()
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname, port, f"{base}/v1/{path}", tls, headers)

    def url(self, path: str) -> str:
        """The address of ``path`` on this server."""
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}{path}"


TOGETHER_S = 0.0005  # of two chunks that come at once: less than any model takes for a token


@dataclass(slots=True)
class Stream:
    """What one request got: when each chunk with a choice arrived, and the usage at its end."""

    started: float = 0.0
    ended: float = 0.0
    chunk_times: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt
    events: list[bytes] | None = None  # a list here collects what came, to be read afterwards

    @property
    def tokens(self) -> int:
        """Tokens generated: the server's own count if it gave one, else one per chunk."""
        return len(self.chunk_times) if self.completion_tokens is None else self.completion_tokens

    @property
    def tpot_s(self) -> float | None:
        """The mean time between tokens; None of an answer that has one."""
        after = self.tokens - 1
        return (self.chunk_times[-1] - self.chunk_times[0]) / after if after > 0 else None

    @property
    def gaps_s(self) -> list[tuple[float, float]]:
        """For each chunk that came after the first ones, when, and its share of the time since.

        Chunks that come together, as tokens that a server has guessed do, share one gap: nobody
        sees them one after the other.
        """
        gaps: list[tuple[float, float]] = []
        begin = last = None
        together = 0
        for now in [*self.chunk_times, math.inf]:
            if last is not None and now - last < TOGETHER_S:
                together += 1
            else:
                if begin is not None and last is not None:
                    gaps += [(last, (last - begin) / together)] * together
                begin, together = last, 1
            last = now
        return gaps


def event_data(body: bytes) -> Iterator[bytes]:
    """The data of each event of a stream; comments that keep a connection alive have none."""
    for event in body.split(EVENT_END):
        if event.startswith(b"data:"):
            yield event[5:].strip()


class ChunkedBody:
    """Takes the framing of ``Transfer-Encoding: chunked`` off, whatever the packet boundaries."""

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0  # bytes still to come of the current chunk
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """The body bytes among ``data``."""
        self._buffer += data
        body = []
        while self._buffer and not self.ended:
            if self._left:
                part = self._buffer[: self._left]
                self._buffer = self._buffer[len(part) :]
                self._left -= len(part)
                body.append(part)
                continue
            line, separator, rest = self._buffer.lstrip(b"\r\n").partition(b"\r\n")
            if not separator:
                break
            self._buffer = rest
            self._left = int(line.partition(b";")[0], 16)
            self.ended = self._left == 0
        return b"".join(body)


class _Connection(asyncio.Protocol):
    """Reads one response; only its first and last chunks are parsed as JSON."""

    def __init__(self, stream: Stream, done: asyncio.Future[None]) -> None:
        self._stream = stream
        self._done = done
        self._head: bytes | None = b""
        self._status = 0
        self._chunked: ChunkedBody | None = None
        self._body = b""

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._head is not None:
            self._head += data
            head, separator, data = self._head.partition(b"\r\n\r\n")
            if not separator:
                return
            self._read_head(head)
        if self._chunked:
            data = self._chunked.feed(data)
        self._body += data
        if self._status == 200:
            for event in self._events():
                self._read_event(event, now)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done.done():
            return
        if self._status not in (0, 200):
            text = self._body.decode("utf-8", "replace").strip()
            self._fail(f"status {self._status}: {text[:200]}")
        else:
            self._fail(f"connection closed before [DONE]{f' ({exc})' if exc else ''}")

    def _read_head(self, head: bytes) -> None:
        self._head = None
        status, *fields = head.split(b"\r\n")
        self._status = int(status.split()[1])
        if any(
            line.lower().startswith(b"transfer-encoding:") and b"chunked" in line.lower()
            for line in fields
        ):
            self._chunked = ChunkedBody()

    def _events(self) -> Iterator[bytes]:
        if b"\r" in self._body:
            self._body = self._body.replace(b"\r\n", b"\n")
        whole, _, self._body = self._body.rpartition(EVENT_END)
        yield from event_data(whole)

    def _read_event(self, event: bytes, now: float) -> None:
        if self._done.done():
            return
        if self._stream.events is not None:
            self._stream.events.append(event)
        if event == DONE:
            self._stream.ended = now
            self._done.set_result(None)
        elif event.startswith(ERROR_PREFIX):
            self._fail(event.decode("utf-8", "replace")[:200])
        else:
            # Parsing every chunk would load the machine under test; only these can lack a token.
            first = not self._stream.chunk_times
            if not first and not any(mark in event for mark in PARSED_MARKS):
                self._stream.chunk_times.append(now)
            else:
                self._read_chunk(json.loads(event), now)

    def _read_chunk(self, chunk: dict[str, Any], now: float) -> None:
        if usage := chunk.get("usage"):
            self._stream.prompt_tokens = usage.get("prompt_tokens")
            self._stream.completion_tokens = usage.get("completion_tokens")
            details = usage.get("prompt_tokens_details") or {}
            self._stream.cached_tokens = details.get("cached_tokens")
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta", choice)
            if delta.get("text") or delta.get("content") or delta.get("reasoning_content"):
                self._stream.chunk_times.append(now)

    def _fail(self, message: str) -> None:
        self._done.set_exception(StreamError(message))


async def post_stream(
    target: Target, body: dict[str, object], timeout_s: float, stream: Stream | None = None
) -> Stream:
    """Send one request on a connection of its own and time what comes back.

    ``stream`` is where it is noted, for those who want to look before the end.
    """
    payload = json.dumps(body).encode()
    request = b"".join(
        (
            f"POST {target.path} HTTP/1.1\r\n".encode(),
            target.headers,
            f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n".encode(),
            payload,
        )
    )
    loop = asyncio.get_running_loop()
    stream = stream or Stream()
    stream.started = time.perf_counter()
    done: asyncio.Future[None] = loop.create_future()
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(
                lambda: _Connection(stream, done),
                target.host,
                target.port,
                ssl=ssl.create_default_context() if target.tls else None,
            )
            try:
                transport.write(request)
                await done
            finally:
                transport.close()
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise StreamError(f"no end within {timeout_s:g} s") from None
        raise StreamError(str(error)) from None
    return stream
