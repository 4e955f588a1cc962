"""What bodies may cost before their request is admitted, over raw sockets."""

import json
import socket
import time
from contextlib import ExitStack, suppress

import pytest

from lanewise.settings import Settings
from raw_http import (
    CHUNKED,
    GET_LIVE,
    GET_MODELS,
    OK,
    WAIT_S,
    all_of,
    answer,
    chunks,
    connection,
    error_of,
    exchange,
    head,
    pending,
    refused,
    resident_bytes,
    stream,
)
from toy_server import in_background, toy_server


def test_trailers_are_no_part_of_the_head(server):
    raw = head(CHUNKED) + chunks(json.dumps(OK).encode()) + b"0\r\nX-Request-Id: trailer\r\n\r\n"
    with connection(server) as sock:
        sock.sendall(raw)
        status, fields, _ = answer(sock)
    assert status == 200
    assert fields["x-request-id"] != "trailer"


@pytest.mark.parametrize(
    "pieces",
    [
        chunks(*[b" "] * 20_000),
        chunks(b" ", extension=b";" + b"a" * 1_000_000),
        chunks(b" ") + b"0\r\n" + b"A: b\r\n" * 200,
        chunks(b" ") + b"0\r\nA: " + b"b" * 1_000_000,
    ],
    ids=["small", "extension", "trailers", "trailer"],
)
def test_what_carries_a_body_must_not_be_much_more_than_the_body(server, pieces):
    received = exchange(server, head(CHUNKED), pieces)
    assert received.split()[1] in (b"400", b"431"), received


def test_an_upgrade_nobody_offers_is_answered_as_if_it_had_not_been_asked_for(server):
    """As Java's client asks for with every request; the body is no request of its own."""
    body = (
        b'{"prompt": "abc", "max_tokens": 2, "user": "' + GET_LIVE.replace(b"\r\n", b"  ") + b'"}'
    )
    fields = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AA")
    for framing, sent in (
        (b"Content-Length: %d" % len(body), body),
        (CHUNKED, chunks(body) + b"0\r\n\r\n"),
    ):
        with connection(server) as sock:
            sock.sendall(head(*fields, framing))
            for start in range(0, len(sent), 40):
                sock.sendall(sent[start : start + 40])
            assert answer(sock)[0] == 200
            sock.sendall(GET_LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            assert all_of(sock).count(b"HTTP/1.1 ") == 1
    with connection(server) as sock:
        sock.sendall(GET_MODELS[:-2] + b"\r\n".join(fields) + b"\r\n\r\n" + GET_LIVE)
        assert [answer(sock)[0]] == [200]


def test_unfinished_bodies_share_a_budget_and_nobody_else_notices():
    n_clients, size = 100, 7_900_000
    settings = Settings(request_memory=64 << 20)
    with toy_server(settings=settings) as server, ExitStack() as held:
        piece = b" " * size
        before = resident_bytes()
        with stream(server):
            socks = [held.enter_context(connection(server)) for _ in range(n_clients)]
            for sock in socks:
                sock.sendall(head(b"Content-Length: 8000000"))

            def send(sock: socket.socket) -> None:
                sock.sendall(piece)

            threads = [in_background(lambda s=s: send(s)) for s in socks]
            for thread in threads:
                thread.join()
            server.wait_until(lambda: refused(server, "too_much_memory") > n_clients - 10)
            assert pending(server) <= 64 << 20
            assert resident_bytes() - before < 200 << 20
            # Ordinary requests are read nevertheless, and large ones are told.
            assert server.client.post("/v1/completions", json=OK).status_code == 200
            late = server.client.post("/v1/completions", json={**OK, "user": "x" * 7_000_000})
            assert late.status_code == 503
            assert late.json()["error"]["code"] == "too_much_memory"
            assert int(late.headers["retry-after"]) > 0
            for sock in socks:
                sock.setblocking(False)
            told: set[socket.socket] = set()

            def all_are_told() -> bool:
                for sock in set(socks) - told:
                    with suppress(BlockingIOError):
                        assert b" 503 " in sock.recv(1 << 16)
                        told.add(sock)
                return len(told) == refused(server, "too_much_memory") - 1  # and the late one

            server.wait_until(all_are_told)
        held.close()
        server.wait_until(lambda: pending(server) == 0)
        body = {**OK, "user": "x" * 7_000_000}
        assert server.client.post("/v1/completions", json=body).status_code == 200
        assert pending(server) == 0


def test_a_body_must_be_complete_in_time_however_it_trickles():
    with toy_server(settings=Settings(body_timeout_s=0.4)) as server, connection(server) as sock:
        sock.sendall(head(b"Content-Length: 100000") + b" " * 70_000)
        server.wait_until(lambda: pending(server) > 0)
        received = b""
        sock.setblocking(False)
        deadline = time.monotonic() + WAIT_S
        while not received and time.monotonic() < deadline:
            sock.send(b" ")
            time.sleep(0.02)
            try:
                received = sock.recv(1 << 16)
            except BlockingIOError:
                continue
        error = error_of(received, 408)
        assert (error["code"], error["type"]) == ("slow_client", "timeout_error")
        assert "body_timeout_s" in error["message"]
        assert pending(server) == 0
        assert server.client.post("/v1/completions", json=OK).status_code == 200


def test_who_sends_too_much_or_without_a_key_is_told_before_the_end_and_kept_nothing_of():
    with toy_server(api_keys=("key",)) as server:
        good = b"Authorization: Bearer key"
        for fields, status in (((), b"401"), ((good,), b"413")):
            for extra in ((), (b"Connection: close",), (b"Expect: 100-continue",)):
                with connection(server) as sock:
                    sock.sendall(head(b"Content-Length: 20000000", *fields, *extra))
                    # No 100 Continue, no waiting for the body; and the answer is not lost to a
                    # reset while the rest is still being sent.
                    in_background(lambda s=sock: s.sendall(b" " * 20_000_000)).join()
                    assert sock.recv(1 << 16).split()[1] == status
        assert pending(server) == 0
