"""Clients with ways of their own: HTTP/1.0, one direction closed, coded bodies, slashes."""

import gzip
import json
import socket
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from lanewise.api.http import protocol
from toy_server import toy_server

COMPLETIONS = "/v1/completions"
ASK = {"prompt": "abc", "max_tokens": 5, "seed": 1}


def connect(server):
    address = urlsplit(server.url)
    sock = socket.create_connection((address.hostname, address.port), timeout=60)
    return closing(sock)


def post(body, version="1.1", **fields):
    data = json.dumps(body).encode()
    fields = {"Host": "x", "Content-Length": str(len(data)), **fields}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {COMPLETIONS} HTTP/{version}\r\n{head}\r\n".encode() + data


def read_all(sock):
    received = b""
    while data := sock.recv(1 << 16):
        received += data
    return received


def text_of(stream):
    """What a stream of events says."""
    events = [line[6:] for line in stream.split(b"\n") if line.startswith(b"data: {")]
    parts = (json.loads(event)["choices"] for event in events)
    return "".join(choice["text"] for choices in parts for choice in choices)


def test_a_stream_for_http_1_0_has_no_chunks_and_ends_with_the_connection(client, server):
    whole = client.post(COMPLETIONS, json=ASK).json()["choices"][0]["text"]
    with connect(server) as sock:
        sock.sendall(post(ASK | {"stream": True}, "1.0"))
        head, _, body = read_all(sock).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")
    assert text_of(body) == whole


def test_an_answer_for_http_1_0_has_a_length(server):
    with connect(server) as sock:
        sock.sendall(post(ASK, "1.0"))
        head, _, body = read_all(sock).partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0]
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert json.loads(body)["choices"]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_has_said_all_is_answered(server, version, stream):
    with connect(server) as sock:
        sock.sendall(post(ASK | {"stream": stream, "max_tokens": 40}, version))
        sock.shutdown(socket.SHUT_WR)
        received = read_all(sock)
    while received.startswith(b"HTTP/1.1 100 "):
        received = received.partition(b"\r\n\r\n")[2]
    assert received.startswith(b"HTTP/1.1 200 ")
    assert (b"[DONE]" in received) == stream
    assert received.rstrip(b"\r\n0").endswith((b"}", b"[DONE]"))


def test_requests_sent_ahead_are_answered_after_the_end_of_the_sending_side(server):
    with connect(server) as sock:
        sock.sendall(post(ASK) + post(ASK | {"max_tokens": 9}))
        sock.shutdown(socket.SHUT_WR)
        received = read_all(sock)
    assert received.count(b"HTTP/1.1 200 ") == 2
    assert b'"completion_tokens":9' in received


def test_who_is_gone_is_told_from_who_listens(monkeypatch):
    """A whole answer sends nothing for long; what it would cost is not paid for nobody."""
    monkeypatch.setattr(protocol, "LISTENERS_S", 0.01)
    with toy_server() as server:
        with connect(server) as sock:
            sock.sendall(post(ASK | {"max_tokens": 400, "ignore_eos": True}))
            server.wait_until(lambda: server.metric("vllm:num_requests_running") == 1)
        server.wait_until(
            lambda: (
                sum(
                    server.metric("lanewise_requests_cancelled_total", stage=stage)
                    for stage in ("prefill", "decode")
                )
                == 1
            )
        )


def test_half_a_request_and_an_end_is_no_request(server):
    with connect(server) as sock:
        sock.sendall(post(ASK)[:-5])
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "deflate, gzip"])
def test_coded_bodies_are_refused_by_name(client, coding):
    body = gzip.compress(json.dumps(ASK).encode())
    answer = client.post(COMPLETIONS, content=body, headers={"content-encoding": coding})
    assert answer.status_code == 415
    error = answer.json()["error"]
    assert error["code"] == "unsupported_content_encoding"
    assert coding in error["message"]
    plain = client.post(COMPLETIONS, json=ASK, headers={"content-encoding": "identity"})
    assert plain.status_code == 200


def test_a_slash_at_the_end_of_a_path_says_nothing(client):
    for path in ("/v1/models", "/health", "/health/live", "/metrics", "/openapi.json"):
        assert client.get(f"{path}/").status_code == client.get(path).status_code == 200
    assert client.get("/v1/models/").json()["data"] == client.get("/v1/models").json()["data"]
    answer = client.post(f"{COMPLETIONS}/", json=ASK)
    assert answer.json()["choices"] == client.post(COMPLETIONS, json=ASK).json()["choices"]
    assert client.get("/").status_code == 200
    assert client.get("/v1/models//").status_code == 404


def test_a_slash_opens_nothing():
    with toy_server(api_keys=("key",)) as server:
        assert server.client.get("/v1/models/").status_code == 401
        assert server.client.get("/health/").status_code == 200
        headers = {"authorization": "Bearer key"}
        assert server.client.get("/v1/models/", headers=headers).status_code == 200
