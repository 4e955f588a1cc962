"""The load test's own HTTP and event parsing, against a server that sends awkward bytes."""

import asyncio
import contextlib
import json

import pytest

from loadtests.http_stream import ChunkedBody, Stream, StreamError, Target, post_stream


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return framed + b"0\r\n\r\n"


@pytest.mark.parametrize("packet", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("size", [1, 5, 64])
def test_chunked_framing_is_removed_at_any_packet_boundary(packet, size):
    body = bytes(range(256)) * 2
    framed = chunked(body, size)
    decoder = ChunkedBody()
    out = b"".join(decoder.feed(framed[i : i + packet]) for i in range(0, len(framed), packet))
    assert out == body
    assert decoder.ended


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text_chunk(text: str, finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": text, "finish_reason": finish}], usage=None)


def delta_chunk(finish: str | None = None, **delta: str) -> bytes:
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


USAGE = event(choices=[], usage={"prompt_tokens": 11, "completion_tokens": 3})
DONE = b"data: [DONE]\n\n"


async def ask(response: list[bytes], timeout_s: float = 5.0) -> tuple[Stream, bytes]:
    """What ``post_stream`` makes of a server that answers with these packets."""
    requests = []
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            requests.append(head + await reader.readexactly(length))
            for packet in response:
                writer.write(packet)
                await writer.drain()
                await asyncio.sleep(0.002)
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        target = Target.parse(f"http://127.0.0.1:{port}/v1", "completions", "key")
        try:
            stream = await post_stream(target, {"prompt": "x"}, timeout_s)
        finally:
            await closed.wait()
    return stream, requests[0]


def ok(body: bytes, packet: int) -> list[bytes]:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    raw = head + chunked(body, 40)
    return [raw[i : i + packet] for i in range(0, len(raw), packet)]


@pytest.mark.parametrize("packet", [17, 100, 10_000])
def test_completion_chunks_and_usage_are_counted(packet):
    body = text_chunk("a") + b": ping\n\n" + text_chunk("b") + text_chunk("c", "length")
    stream, request = asyncio.run(ask(ok(body + USAGE + DONE, packet)))
    assert len(stream.chunk_times) == 3
    assert (stream.prompt_tokens, stream.completion_tokens, stream.tokens) == (11, 3, 3)
    assert stream.started <= stream.chunk_times[0] <= stream.chunk_times[-1] <= stream.ended
    assert request.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer key\r\n" in request
    assert request.endswith(b'{"prompt": "x"}')


def test_chat_chunks_without_text_are_not_tokens():
    body = delta_chunk(role="assistant", content="") + delta_chunk(content="Hi")
    body += delta_chunk(content="!") + delta_chunk(finish="stop")
    stream, _ = asyncio.run(ask(ok(body + DONE, 10_000)))
    assert len(stream.chunk_times) == 2
    assert stream.tokens == 2


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ([b"HTTP/1.1 429 Too Many\r\n\r\n", b'{"error":{"message":"full"}}'], "status 429.*full"),
        (ok(text_chunk("a") + b'data: {"error":{"message":"boom"}}\n\n', 10_000), "boom"),
        (ok(text_chunk("a"), 10_000), "closed before"),
        ([], "closed before"),
    ],
)
def test_incomplete_streams_are_errors(response, message):
    with pytest.raises(StreamError, match=message):
        asyncio.run(ask(response))


def test_a_silent_server_is_an_error_after_the_timeout():
    silent = [b""] * 200
    with pytest.raises(StreamError, match=r"no end within 0\.05 s"):
        asyncio.run(ask(silent, timeout_s=0.05))


def test_an_unreachable_server_is_an_error():
    target = Target.parse("http://127.0.0.1:1", "completions", None)
    with pytest.raises(StreamError, match="Connect"):
        asyncio.run(post_stream(target, {}, 5.0))


@pytest.mark.parametrize("url", ["ftp://host", "http://", "file:///x"])
def test_a_url_that_is_no_http_address_is_refused(url):
    with pytest.raises(ValueError, match="--url"):
        Target.parse(url, "completions", None)


def test_a_base_url_may_have_a_prefix():
    target = Target.parse("https://host/llm/v1/", "chat/completions", None)
    assert (target.port, target.tls, target.path) == (443, True, "/llm/v1/chat/completions")


def test_chunks_that_come_together_share_the_time_since():
    stream = Stream(chunk_times=[1.0, 1.0001, 2.0, 2.0, 2.0001, 3.0], completion_tokens=9)
    gaps = stream.gaps_s
    assert [when for when, _ in gaps] == [2.0001] * 3 + [3.0]
    assert [gap for _, gap in gaps] == pytest.approx([1 / 3] * 3 + [0.9999], rel=1e-6)
    assert stream.tpot_s == pytest.approx(2 / 8)
    for times in ([], [1.0], [1.0, 1.0]):
        assert Stream(chunk_times=times).gaps_s == []
