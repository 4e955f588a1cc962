"""What connections may cost before their request is admitted, over raw sockets."""

import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from lanewise.api.protocol import MAX_PIPELINED, PROBES
from lanewise.server.listener import raise_file_limit
from lanewise.settings import Settings
from toy_server import CONFIG, RunningServer, in_background, toy_server

OK = {"prompt": "abc", "max_tokens": 2}
ENDLESS = {"prompt": "abc", "max_tokens": 500, "ignore_eos": True, "seed": 1}
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
    return server.state.engine.metrics.registry.get_sample_value("lanewise_http_pending_body_bytes")


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


# Heads


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
    """The read that ends one body begins the next head."""
    body = post({**OK, "prompt": "abc", "user": "x" * 150_000})
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


# Bodies


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
    settings = Settings(max_pending_body_bytes=64 << 20)
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
            server.wait_until(lambda: refused(server, "too_many_bodies") > n_clients - 10)
            assert pending(server) <= 64 << 20
            assert resident_bytes() - before < 200 << 20
            # Ordinary requests are read nevertheless, and large ones are told.
            assert server.client.post("/v1/completions", json=OK).status_code == 200
            late = server.client.post("/v1/completions", json={**OK, "user": "x" * 7_000_000})
            assert late.status_code == 503
            assert late.json()["error"]["code"] == "too_many_bodies"
            assert int(late.headers["retry-after"]) > 0
            for sock in socks:
                sock.setblocking(False)
            told: set[socket.socket] = set()

            def all_are_told() -> bool:
                for sock in set(socks) - told:
                    with suppress(BlockingIOError):
                        assert b" 503 " in sock.recv(1 << 16)
                        told.add(sock)
                return len(told) == refused(server, "too_many_bodies") - 1  # and the late one

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


# Connections


def test_slow_connections_are_closed_and_leave_room():
    n_slow = 1100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    settings = Settings(head_timeout_s=1.0, max_connections=1200)
    with toy_server(settings=settings) as server, stream(server), ExitStack() as held:
        socks = [held.enter_context(connection(server)) for _ in range(n_slow)]
        for index, sock in enumerate(socks):
            sock.sendall((b"", b"\r\n", b"GET / HT", GET_MODELS[:-2])[index % 4])
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
            with connection(server) as sock:
                sock.sendall(GET_LIVE)
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


# Answers


def test_a_client_that_does_not_read_is_given_up():
    config = replace(CONFIG, n_blocks=256)
    with toy_server(config, settings=Settings(send_timeout_s=0.5)) as server:
        server.runner.delay_s = 0.005
        body = {**ENDLESS, "n": 8, "logprobs": 20, "stream": True}
        with connection(server, receive_buffer=4096) as sock:
            sock.sendall(post(body))
            server.wait_until(lambda: refused(server, "send_timeout") == 1)
            server.wait_until(lambda: server.state.engine.unfinished == 0)
            assert server.metric("lanewise_requests_cancelled_total", stage="decode") == 8
            assert server.metric("vllm:generation_tokens_total") < 8 * 400
        server.wait_until(lambda: n_open(server) <= 1)


def test_a_client_that_leaves_an_answer_unread_does_not_hold_the_connection():
    with toy_server(settings=Settings(send_timeout_s=0.5)) as server:
        body = {**ENDLESS, "max_tokens": 400, "logprobs": 20}
        for fields in ((), (b"Connection: close",)):
            before = refused(server, "send_timeout")
            with connection(server, receive_buffer=4096) as sock:
                sock.sendall(post(body, *fields))
                server.wait_until(lambda b=before: refused(server, "send_timeout") > b)
                server.wait_until(lambda: n_open(server) <= 1)


def test_a_slow_reader_gets_all_of_its_answer():
    """It takes longer than send_timeout_s, and takes much more than what it must in that time."""
    with toy_server(settings=Settings(send_timeout_s=2.0)) as server:
        body = {**ENDLESS, "max_tokens": 300, "logprobs": 20, "stream": True}
        with connection(server, receive_buffer=4096) as sock:
            sock.sendall(post(body, b"Connection: close"))
            received = b""
            while piece := sock.recv(8192):
                received += piece
                time.sleep(0.08)
        assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert len(received) > 200_000
        assert refused(server, "send_timeout") == 0


def test_pipelined_requests_are_answered_in_order_up_to_a_number(server):
    with connection(server) as sock:
        sock.sendall(post(OK) + GET_LIVE + GET_MODELS)
        received = b""
        while received.count(b"HTTP/1.1 200") < 3 or not received.endswith(b"]}"):
            received += sock.recv(1 << 16)
        places = [received.index(text) for text in (b'"toy-0"', b'{"status":"ok"}', b'"max_model')]
        assert places == sorted(places)
    received = exchange(server, post({**OK, "max_tokens": 100}) + GET_LIVE * 10_000)
    assert received.count(b"HTTP/1.1 200") == 1 + MAX_PIPELINED
    assert received.count(b"connection: close") == 1


def test_a_client_that_sends_ahead_and_leaves_is_noticed(server):
    def cancelled() -> float:
        return server.metric("lanewise_requests_cancelled_total", stage="decode")

    before = cancelled()
    server.runner.delay_s = 0.01
    try:
        with connection(server) as sock:
            sock.sendall(post(ENDLESS) + post({**OK, "user": "x" * 99_000}))
            server.wait_until(lambda: server.metric("lanewise_kv_blocks_used") > 0)
        server.wait_until(lambda: cancelled() == before + 1)
    finally:
        server.runner.delay_s = 0.0
    assert pending(server) == 0


def test_a_slow_body_behind_a_request_does_not_harm_its_answer():
    with toy_server(settings=Settings(body_timeout_s=0.2)) as server:
        server.runner.delay_s = 0.02
        body = {**ENDLESS, "max_tokens": 150, "stream": True}
        received = exchange(server, post(body) + head(b"Content-Length: 70") + b" ")
    answered, _, late = received.partition(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert answered.count(b"\ndata: ") + answered.startswith(b"data: ") >= 149
    assert error_of(late, 408)["code"] == "slow_client"


def test_something_wrong_behind_a_request_does_not_harm_its_answer(server):
    body = {**ENDLESS, "max_tokens": 50, "stream": True}
    received = exchange(server, post(body) + b"\0\0 nonsense\r\n\r\n")
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert received.count(b"HTTP/1.1 ") == 1


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
        assert "max_connections wants" in caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
