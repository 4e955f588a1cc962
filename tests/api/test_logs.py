"""What clients send is in log lines, but never makes them."""

import json
import logging
import socket
from contextlib import contextmanager

import pytest

from lanewise.api.observing.logs import set_up_logging
from toy_server import toy_server

NASTY = "a\r\nb\x1b[2Kc\u2028d\u2029e\x85f\x9bg\u202eh\x00i\ud800"


@contextmanager
def logging_as(form):
    root, ours = logging.getLogger(), logging.getLogger("lanewise")
    before = root.handlers, root.level, ours.level
    set_up_logging("debug", form)
    try:
        yield
    finally:
        root.handlers = before[0]
        root.setLevel(before[1])
        ours.setLevel(before[2])


def assert_plain(text):
    assert all(line.isprintable() for line in text.removesuffix("\n").split("\n")), repr(text)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_path_makes_no_line_of_its_own(capsys, form):
    with logging_as(form), toy_server() as server:
        capsys.readouterr()
        port = int(server.url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(
                b"GET /v1/models%0d%0aINFO%20forged%1b[2K%e2%80%a8x HTTP/1.1\r\nHost: x\r\n"
                b"X-Request-Id: a\xc2\x85b\r\nConnection: close\r\n\r\n"
            )
            while sock.recv(1 << 16):
                pass
        assert server.client.get("/" + "y" * 8000).status_code == 404
        body = {"model": NASTY[:-1], "prompt": "x"}
        assert server.client.post("/v1/completions", json=body).status_code == 404
        written = capsys.readouterr().err
    assert_plain(written)
    lines = written.splitlines()
    assert sum("forged" in line for line in lines) == 1
    assert not any(line.startswith("INFO") for line in lines)
    assert max(map(len, lines)) < 1000
    if form == "text":
        assert "GET /v1/models\\r\\nINFO forged\\x1b[2K\\u2028x 404" in written
    else:
        messages = [json.loads(line)["message"] for line in lines]
        assert any(
            text.startswith("GET /v1/models\r\nINFO forged\x1b[2K\u2028x 404") for text in messages
        )


@pytest.mark.parametrize("form", ["text", "json"])
def test_whatever_a_record_holds_it_is_one_line_and_its_traceback_is_told_apart(capsys, form):
    with logging_as(form):
        logger = logging.getLogger("lanewise.test")
        logger.info("request %s", NASTY, extra={"request_id": NASTY})
        try:
            raise ValueError(NASTY + "\n2026-01-01 00:00:00,000 INFO    forged")
        except ValueError:
            logger.exception("%s failed", NASTY)
        written = capsys.readouterr().err
    assert "Logging error" not in written
    assert_plain(written)
    lines = written.splitlines()
    if form == "json":
        first, second = map(json.loads, lines)
        assert first["message"] == "request " + NASTY
        assert first["request_id"] == NASTY
        assert NASTY in second["traceback"]
    else:
        assert lines[0].endswith(
            "request a\\r\\nb\\x1b[2Kc\\u2028d\\u2029e\\x85f\\x9bg\\u202eh\\x00i\\ud800"
        )
        assert "ERROR" in lines[1]
        assert all(line.startswith("  ") for line in lines[2:])
        assert "forged" in lines[-1]
