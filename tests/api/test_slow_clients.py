"""What clients may cost that read slowly, leave, or send ahead, over raw sockets."""

import time
from dataclasses import replace

from lanewise.api.http.protocol import MAX_PIPELINED
from lanewise.settings import Settings
from raw_http import (
    ENDLESS,
    GET_LIVE,
    GET_MODELS,
    OK,
    connection,
    error_of,
    exchange,
    head,
    n_open,
    pending,
    post,
    refused,
)
from toy_server import CONFIG, toy_server


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
