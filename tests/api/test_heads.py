"""Fields that a head has once, and the one that it must have (RFC 9112, 3.2)."""

import pytest

from lanewise.api.http.refusals import SINGLE
from raw_http import answer, connection, exchange
from toy_server import toy_server


@pytest.fixture(scope="module")
def server():
    with toy_server() as running:
        yield running


def status_of(server, raw: bytes) -> tuple[int, bytes]:
    with connection(server) as sock:
        sock.sendall(raw)
        status, _, body = answer(sock)
        return status, body


VALUES = {
    b"host": b"x",
    b"transfer-encoding": b"chunked",
    b"content-length": b"2",
    b"expect": b"100-continue",
    b"origin": b"http://localhost",
}


@pytest.mark.parametrize("name", sorted(SINGLE))
@pytest.mark.parametrize("other", [b"", b"other"], ids=["equal", "other"])
def test_a_field_that_comes_twice_is_refused(server, name, other):
    value = VALUES.get(name, b"a")
    second = b"" if name == b"transfer-encoding" else other
    fields = b"%b: %b\r\n%b: %b\r\n" % (name, value, name.title(), value + second)
    host = b"" if name == b"host" else b"Host: x\r\n"
    status, body = status_of(server, b"POST /v1/completions HTTP/1.1\r\n" + host + fields + b"\r\n")
    assert status == 400
    assert b"invalid_http" in body


@pytest.mark.parametrize("fields", [b"", b"Accept: */*\r\n"])
def test_a_head_without_a_host_is_refused(server, fields):
    status, body = status_of(server, b"GET /v1/models HTTP/1.1\r\n" + fields + b"\r\n")
    assert status == 400
    assert b"'host'" in body
    assert status_of(server, b"GET /v1/models HTTP/1.0\r\n" + fields + b"\r\n")[0] == 200


def test_others_may_come_twice_and_each_head_is_one_of_its_own(server):
    head = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAccept: a\r\nAccept: b\r\n\r\n"
    closing = head.replace(b"Accept: a", b"Connection: close")
    assert exchange(server, head + head + closing).count(b"HTTP/1.1 200") == 3
