"""HTTP as bytes over sockets, for tests of what connections may cost."""

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from toy_server import RunningServer

OK = {"prompt": "abc", "max_tokens": 2}
# With the ids of tokens each has an event, text or not.
ENDLESS = {"prompt": "abc", "max_tokens": 500, "ignore_eos": True, "seed": 1}
ENDLESS |= {"return_token_ids": True}
GET_MODELS = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
GET_LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked"
TOO_LARGE = ("request_header_fields_too_large", "uri_too_long")
WAIT_S = 20.0


def head(*fields: bytes) -> bytes:
    lines = (b"POST /v1/completions HTTP/1.1", b"Host: x", *fields, b"", b"")
    return b"\r\n".join(lines)


def post(body: dict, *fields: bytes) -> bytes:
    raw = json.dumps(body).encode()
    return head(b"Content-Length: %d" % len(raw), *fields) + raw


def chunks(*pieces: bytes, extension: bytes = b"") -> bytes:
    return b"".join(b"%x%b\r\n%b\r\n" % (len(p), extension, p) for p in pieces)


@contextmanager
def connection(server: RunningServer, **options: int) -> Iterator[socket.socket]:
    with socket.socket() as sock:
        if "receive_buffer" in options:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options["receive_buffer"])
        sock.settimeout(WAIT_S)
        sock.connect(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
        yield sock


def all_of(sock: socket.socket) -> bytes:
    """Everything until the server closes."""
    received = b""
    while piece := sock.recv(1 << 16):
        received += piece
    return received


def answer(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, fields and body of one answer that has a length."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += (piece := sock.recv(1 << 16))
        assert piece, f"closed after {received!r}"
    first, _, body = received.partition(b"\r\n\r\n")
    lines = first.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines[1:])
    while len(body) < int(fields["content-length"]):
        body += sock.recv(1 << 16)
    return int(lines[0].split()[1]), fields, body


def error_of(raw: bytes, status: int) -> dict:
    first, _, body = raw.partition(b"\r\n\r\n")
    assert int(first.split()[1]) == status, raw
    assert b"connection: close" in first
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def exchange(server: RunningServer, *raw: bytes) -> bytes:
    """What comes back for some bytes until the server closes."""
    with connection(server) as sock:
        for piece in raw:
            sock.sendall(piece)
        return all_of(sock)


def refused(server: RunningServer, reason: str) -> float:
    registry = server.state.engine.metrics.registry
    return registry.get_sample_value("lanewise_http_refused_total", {"reason": reason}) or 0.0


def pending(server: RunningServer) -> float:
    return server.state.engine.metrics.registry.get_sample_value("lanewise_request_memory_bytes")


def n_open(server: RunningServer) -> float:
    return server.state.engine.metrics.registry.get_sample_value("lanewise_http_connections")


def resident_bytes() -> int:
    """Of this process, which is client and server."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@contextmanager
def stream(server: RunningServer, tokens: int = 120) -> Iterator[None]:
    """An honest stream that goes on all the time, and is whole in the end."""
    body = {**ENDLESS, "max_tokens": tokens, "stream": True}
    server.runner.delay_s = 0.01
    with (
        httpx.Client(base_url=server.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        yield
        server.runner.delay_s = 0.0
        rest = [line for line in lines if line]
    assert len(rest) == tokens  # one has been read; [DONE]
    assert rest[-1] == "data: [DONE]"
