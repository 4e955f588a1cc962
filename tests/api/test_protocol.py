"""The protocol over any cutting of its input: same requests, or an end, and nothing held."""

import asyncio
import logging
from collections.abc import Iterable
from itertools import pairwise
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState

from lanewise.api.http import limits
from lanewise.api.http.front import Front
from lanewise.api.http.web_config import make_config
from lanewise.settings import Settings

FIELDS = st.lists(
    st.sampled_from(
        (
            b"X: y",
            b"Connection: Upgrade\r\nUpgrade: h2c",
            b"Expect: 100-continue",
            b"X-Y: " + b"z" * 99,
        )
    ),
    max_size=3,
    unique=True,
)
BODIES = st.binary(max_size=300)


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def write_eof(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name, default=None):
        return default

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def get_write_buffer_size(self) -> int:
        return 0


async def echo(scope, receive, send):
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        if scope["hold"].refusal is not None:
            body = b"refused"
            break
        body += message["body"]
        more = message["more_body"]
    told = b"%b %b %b" % (scope["method"].encode(), scope["raw_path"], body.hex().encode())
    fields = [(b"content-length", b"%d" % len(told))]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": told})


async def feed(pieces: Iterable[bytes], **options: int) -> tuple[Wire, Front]:
    """What a connection makes of some reads; the client leaves in the end."""
    front = Front(Settings(**options), CollectorRegistry())
    config = make_config(front, echo)
    config.load()
    wire = Wire()
    loop = asyncio.get_running_loop()
    connection = config.http_protocol_class(
        config=config, server_state=ServerState(), app_state={}, _loop=loop
    )
    connection.connection_made(wire)
    for piece in pieces:
        if wire.closed:
            break
        connection.data_received(piece)
        await asyncio.sleep(0)
    for _ in range(200):
        await asyncio.sleep(0)
        connection.check(loop.time())
    was_closed = wire.closed
    connection.connection_lost(None)
    wire.closed = was_closed
    for _ in range(10):
        await asyncio.sleep(0)
    return wire, front


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(data) + 1) for place in at), len(data)]
    return [data[a:b] for a, b in pairwise(places) if a < b]


@st.composite
def messages(draw) -> tuple[bytes, bytes]:
    """A request, and what it is answered."""
    path, body, fields = draw(st.sampled_from((b"/a", b"/b%20c"))), draw(BODIES), draw(FIELDS)
    if draw(st.booleans()):
        framing, sent = b"Content-Length: %d" % len(body), body
    else:
        parts = cut(body, draw(st.lists(st.integers(0, 300), max_size=4)))
        extension = draw(st.sampled_from((b"", b";a=b")))
        chunks = (b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
        end = draw(st.sampled_from((b"0\r\n\r\n", b"0\r\nX-Trailer: 1\r\n\r\n")))
        framing, sent = b"Transfer-Encoding: chunked", b"".join(chunks) + end
    head = b"\r\n".join((b"POST " + path + b" HTTP/1.1", b"Host: x", framing, *fields, b"", b""))
    return head + sent, b"POST %b %b" % (path, body.hex().encode())


CUTS = st.lists(st.integers(0, 4000), max_size=25)


@settings(max_examples=120, deadline=None)
@given(st.lists(messages(), min_size=1, max_size=5), CUTS)
def test_requests_are_the_same_however_they_are_cut(asked, cuts):
    with mock.patch.object(limits, "FREE_BYTES", 0):
        wire, front = asyncio.run(feed(cut(b"".join(raw for raw, _ in asked), cuts)))
    answers = [part.partition(b"\r\n\r\n")[2] for part in wire.sent.split(b"HTTP/1.1 200 OK")[1:]]
    told = [answer.removesuffix(b"HTTP/1.1 100 Continue\r\n\r\n") for answer in answers]
    assert told == [answer for _, answer in asked]
    assert not wire.closed
    assert front.memory.used == 0


@settings(max_examples=200, deadline=None)
@given(
    st.lists(messages(), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=5)), max_size=4),
    CUTS,
)
def test_whatever_comes_ends_with_nothing_held_and_nothing_said_of_mistakes(asked, changes, cuts):
    data = b"".join(raw for raw, _ in asked)
    for place, new in changes:
        place %= len(data)
        data = data[:place] + new + data[place + len(new) // 2 :]
    said: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = said.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        with mock.patch.object(limits, "FREE_BYTES", 0):
            pieces = cut(data, cuts)
            wire, front = asyncio.run(feed(pieces, max_head_bytes=2048, request_memory=400))
    finally:
        logging.getLogger().removeHandler(handler)
    assert not said
    assert front.memory.used == 0
    assert wire.sent.count(b"\r\nconnection: close\r\n") <= 1
