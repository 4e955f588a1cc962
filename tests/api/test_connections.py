"""What connections and heads may cost before their request is admitted, over raw sockets."""

import os
import resource
import socket
import time
from contextlib import ExitStack

import httpx
import pytest

from lanewise.api.http.files import PROBES, SPARE_FILES, places
from lanewise.server.listener import raise_file_limit
from lanewise.settings import Settings
from raw_http import (
    CHUNKED,
    GET_LIVE,
    GET_MODELS,
    OK,
    TOO_LARGE,
    all_of,
    answer,
    connection,
    error_of,
    exchange,
    head,
    n_open,
    pending,
    post,
    refused,
    stream,
)
from toy_server import toy_server


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\n"])
def test_a_head_that_never_ends_is_answered_after_its_first_bytes(server, start):
    before = sum(refused(server, code) for code in TOO_LARGE)
    piece = b"a" * (1 << 16) if start != b"GET / HTTP/1.1\r\n" else b"ab: c\r\n" * 10_000
    with connection(server) as sock:
        sock.sendall(start)
        sock.setblocking(False)
        sent, received = 0, b""
        while not received and sent < 64 << 20:
            try:
                sent += sock.send(piece)
            except BlockingIOError:
                time.sleep(0.001)
            except ConnectionError:
                break
            try:
                received = sock.recv(1 << 16)
            except BlockingIOError:
                continue
    assert sent < 16 << 20
    too_long = received.startswith(b"HTTP/1.1 414")
    error = error_of(received, 414 if too_long else 431)
    assert error["code"] == "uri_too_long" if too_long else "max_head_bytes" in error["message"]
    assert sum(refused(server, code) for code in TOO_LARGE) == before + 1
    assert server.client.get("/health/live").status_code == 200


def test_a_head_that_arrives_byte_by_byte_is_counted_too():
    with toy_server(settings=Settings(max_head_bytes=2048)) as server, connection(server) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(2100):
            sock.sendall(b"a")
        assert error_of(all_of(sock), 431)["code"] == "request_header_fields_too_large"


def test_heads_within_the_limits_are_read(client):
    most = {f"x-{i}": "v" * 400 for i in range(120)}
    assert client.get("/v1/models", headers=most).status_code == 200
    assert client.get("/v1/models/" + "m" * 8000).status_code == 404
    for wrong in ({f"x-{i}": "v" for i in range(130)}, {"x": "v" * 70_000}):
        assert client.get("/v1/models", headers=wrong).status_code == 431
    assert client.get("/v1/models/" + "m" * 9000).status_code == 414


def test_large_requests_one_after_another_are_not_taken_for_one_head(server):
    """The read that ends one body begins the next head, however much of the body it holds."""
    body = post({**OK, "prompt": "abc", "user": "x" * 150_000})
    for _ in range(200):  # how much that is, the system decides
        with connection(server) as sock:
            sock.sendall(body + body[:20])
            assert answer(sock)[0] == 200
            sock.sendall(body[20:])
            assert answer(sock)[0] == 200


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (head(b"Content-Length: 5", CHUNKED), 400),
        (head(b"Content-Length: 5", b"Content-Length: 6"), 400),
        (head(b"Content-Length: -1"), 400),
        (head(b"Content-Length: 99999999999999999999999"), 400),
        (head(b"Transfer-Encoding: gzip, chunked"), 501),
        (head(b"Transfer-Encoding: xchunked"), 501),
        (head(CHUNKED, CHUNKED), 400),
        (head(b"X: a\r\n b"), 400),
        (head(b"X : a"), 400),
        (head(b"X: \0"), 400),
        (b"GET /v1/\xff HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a:80 HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)
def test_what_is_not_http_or_could_be_read_in_two_ways_is_refused(server, raw, status):
    assert error_of(exchange(server, raw), status)["type"] == "invalid_request_error"


def test_paths_are_whatever_bytes_they_are(server):
    raw = b"GET /v1/%ff%00%zz%0d%0aX HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert error_of(exchange(server, raw), 404)["code"] == "not_found"


def test_slow_connections_are_closed_and_leave_room():
    n_slow = 1100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    settings = Settings(head_timeout_s=1.0, max_connections=1200)
    with toy_server(settings=settings) as server, stream(server), ExitStack() as held:
        socks = []
        for index in range(n_slow):  # each at once: its second begins
            socks.append(held.enter_context(connection(server)))
            socks[-1].sendall((b"", b"\r\n", b"GET / HT", GET_MODELS[:-2])[index % 4])
        for index, sock in enumerate(socks):
            received = all_of(sock)
            assert error_of(received, 408) if index % 4 else received == b"", received
        server.wait_until(lambda: n_open(server) < 5)
        assert refused(server, "head_timeout") == n_slow


def test_beyond_the_limit_of_connections_only_probes_are_answered():
    with toy_server(settings=Settings(max_connections=5)) as server:
        assert server.client.get("/health", headers={"connection": "close"}).status_code == 200
        with stream(server, 400), stream(server, 400), ExitStack() as held:
            for _ in range(3):
                held.enter_context(connection(server)).sendall(head(b"Content-Length: 9"))
            server.wait_until(lambda: n_open(server) == 5)
            for probe in (GET_LIVE, GET_LIVE.replace(b"/health/live", b"/ping")):
                with connection(server) as sock:
                    sock.sendall(probe)
                    status, fields, _ = answer(sock)
                    assert (status, fields["connection"]) == (200, "close")
            with connection(server) as sock:
                sock.sendall(post({**OK, "user": "x" * 100_000}))
                assert error_of(all_of(sock), 503)["code"] == "too_many_connections"
            server.wait_until(lambda: n_open(server) == 5)
            assert pending(server) == 0
            # Those who take the places of the probes in silence are told at once, and soon closed.
            silent = [held.enter_context(connection(server)) for _ in range(PROBES + 20)]
            told = all_of(silent[-1])
            assert b"retry-after: " in told
            assert error_of(told, 503)["code"] == "too_many_connections"
            server.wait_until(lambda: n_open(server) == 5)
        server.wait_until(lambda: n_open(server) == 0)
        assert httpx.get(server.url + "/v1/models").status_code == 200


def test_who_is_slow_gives_way_to_who_comes_with_a_request():
    settings = Settings(max_connections=4, head_timeout_s=30.0)
    with toy_server(settings=settings) as server, stream(server, 400), ExitStack() as held:
        assert server.client.get("/health", headers={"connection": "close"}).status_code == 200
        kept = held.enter_context(connection(server))  # the oldest, but it has had a request
        kept.sendall(GET_MODELS)
        assert answer(kept)[0] == 200
        slow = [held.enter_context(connection(server)) for _ in range(2)]
        slow[0].sendall(GET_MODELS[:-2])
        server.wait_until(lambda: n_open(server) == 4)
        for _ in slow:
            sock = held.enter_context(connection(server))
            sock.sendall(GET_MODELS)
            assert answer(sock)[0] == 200
        assert error_of(all_of(slow[0]), 503)["code"] == "too_many_connections"
        assert all_of(slow[1]) == b""
        kept.sendall(GET_MODELS)
        assert answer(kept)[0] == 200


def test_a_body_gives_way_once_it_has_taken_as_long_as_a_head_may():
    settings = Settings(max_connections=2, head_timeout_s=0.5, body_timeout_s=30.0)
    with toy_server(settings=settings) as server, stream(server, 400):
        assert server.client.get("/health", headers={"connection": "close"}).status_code == 200
        with connection(server) as slow:
            slow.sendall(head(b"Content-Length: 9") + b"{")
            server.wait_until(lambda: n_open(server) == 2)
            wanted = GET_MODELS[:-2] + b"Connection: close\r\n\r\n"
            assert error_of(exchange(server, wanted), 503)["code"] == "too_many_connections"
            server.wait_until(lambda: b" 200 " in exchange(server, wanted)[:20])
            assert error_of(all_of(slow), 503)["code"] == "too_many_connections"


def test_the_process_may_open_a_file_for_each_connection(caplog):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, before[1]))
        raise_file_limit(1100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1100
        raise_file_limit(900)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1100
        assert not caplog.records
        raise_file_limit(before[1] + 1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_there_are_as_many_connections_as_the_limit_of_files_has_room_for(caplog, monkeypatch):
    monkeypatch.setattr(os, "listdir", lambda _: ["0"] * 20)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20 + SPARE_FILES + 1064, 9999))
    assert places(1000) == (1000, PROBES)
    assert not caplog.records
    assert places(1001) == (1000, PROBES)
    assert "1000 connections and 64 probes may be open at once, not 1001 (max_" in caplog.text
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20 + SPARE_FILES + 20, 9999))
    assert places(1000) == (15, 5)
    assert places(3) == (3, 5)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert places(10**6) == (10**6, PROBES)
