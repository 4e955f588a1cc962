"""Ready only while answers can be expected: failures in a row, and model files that change."""

import asyncio
import errno
import os
import threading
import time

import pytest

from lanewise.api import warm_up
from lanewise.loading.base.mapped_file import MappedFile
from lanewise.sandbox import process
from lanewise.server import file_watch
from toy_server import toy_server

OK = {"prompt": "abc", "max_tokens": 2}
POISON = {"prompt": "a~", "max_tokens": 2}


@pytest.fixture
def server():
    with toy_server() as server:
        assert ready(server) == (200, "ready")
        yield server


def ready(server) -> tuple[int, str]:
    answer = server.client.get("/health/ready")
    return answer.status_code, answer.json()["status"]


def ask(server, body=OK) -> int:
    return server.client.post("/v1/completions", json=body).status_code


def last_token(server, text: str) -> int:
    """The one that is computed whatever the prefix cache holds."""
    return server.state.tokenizer.encode(text, add_bos=False, parse_special=False)[-1]


@pytest.mark.parametrize("n", [1, 3])
def test_not_ready_after_three_failures_in_a_row(server, n, caplog):
    server.runner.fail_on_token = last_token(server, "a")
    body = OK | {"prompt": ["a b", "a c", "a d"]} if n == 3 else OK | {"prompt": "a b"}
    for _ in range(3):
        assert ask(server, body) == 500
    status, reason = ready(server)
    assert status == 503
    assert "sequences failed: a value in layer 0 is not finite" in reason
    assert server.client.get("/health/live").status_code == 200
    assert server.metric("lanewise_step_errors_total") >= 3
    said = [one.message for one in caplog.records if "not ready until" in one.message]
    assert len(said) == 1


def test_a_success_makes_the_server_ready_again(server):
    server.runner.fail_on_token = last_token(server, "a")
    for _ in range(4):
        assert ask(server, OK | {"prompt": "a b"}) == 500
    assert ask(server, OK | {"prompt": "xyz"}) == 200
    assert ready(server) == (200, "ready")


def test_where_no_request_comes_any_more_the_server_tries_one_of_its_own(server):
    server.runner.fail_on_token = last_token(server, "Hello")  # of which its own consists
    for _ in range(3):
        assert ask(server, OK | {"prompt": "Hello"}) == 500
    assert ready(server)[0] == 503
    before = failed_steps(server)
    server.wait_until(lambda: ready(server)[0] == 503 and failed_steps(server) > before)
    assert ready(server)[0] == 503, "its own request failed too"
    began, before = time.monotonic(), failed_steps(server)
    for _ in range(50):
        assert ready(server)[0] == 503
    assert failed_steps(server) - before <= 1 + (time.monotonic() - began) / warm_up.TRY_AGAIN_S
    server.runner.fail_on_token = None
    server.wait_until(lambda: ready(server) == (200, "ready"))


def failed_steps(server) -> float:
    return server.metric("lanewise_step_errors_total")


CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
TOLD = "the system starts no more"


def no_process(*_) -> None:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def no_thread(*_) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("refused", ["process", "thread"])
def test_not_ready_while_the_system_starts_no_processes(server, monkeypatch, caplog, refused):
    with monkeypatch.context() as refusing:
        if refused == "process":
            refusing.setattr(process, "_popen", no_process)
        else:
            refusing.setattr(threading.Thread, "start", no_thread)
        for path, body in (
            ("/v1/chat/completions", CHAT),
            ("/v1/completions", OK | {"guided_regex": "[ab]{2}"}),
            ("/v1/messages", CHAT | {"model": "toy"}),
            ("/api/chat", CHAT | {"model": "toy"}),
        ):
            answer = server.client.post(path, json=body)
            assert answer.status_code in (503, 529), answer.text
            assert TOLD in answer.text
            assert int(answer.headers["retry-after"]) > 0
        assert ask(server) == 200
        status, reason = ready(server)
        assert (status, reason.startswith(TOLD)) == (503, True)
        assert server.client.get("/health/live").status_code == 200
        assert server.state.engine.metrics.registry.get_sample_value("lanewise_ready") == 0
        tried = server.state.warming
        server.wait_until(lambda: ready(server)[0] == 503 and server.state.warming is not tried)
    server.wait_until(lambda: ready(server) == (200, "ready"))
    assert server.client.post("/v1/chat/completions", json=CHAT).status_code == 200
    told = [one for one in caplog.records if "no more" in one.message or one.exc_info]
    assert [one.levelname for one in told] == ["ERROR"]
    assert sum("ready again" in one.message for one in caplog.records) == 1


def test_a_grammar_for_which_there_is_no_thread_is_no_bad_grammar(server, monkeypatch):
    body = OK | {"guided_regex": "[ab]{3}"}
    assert ask(server, OK | {"guided_regex": "[ab]{2}"}) == 200  # there is a worker
    with monkeypatch.context() as refusing:
        refusing.setattr(threading.Thread, "start", no_thread)
        assert ask(server, body) == 503
        assert ready(server)[0] == 503
    assert ask(server, body) == 200
    server.wait_until(lambda: ready(server) == (200, "ready"))


def test_one_poisoned_request_after_another_does_not_make_it_unready(server):
    server.runner.fail_on_token = last_token(server, "~")
    for _ in range(6):
        assert ask(server, POISON) == 500
        assert ask(server) == 200
        assert ready(server) == (200, "ready")


def test_not_ready_when_a_file_that_is_mapped_changes(server, tmp_path, caplog):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"x" * 10_000)
    file = MappedFile(path)
    try:

        async def watch() -> None:
            await asyncio.wait_for(file_watch.watch(server.state, interval_s=0.001), 30)

        with path.open("r+b") as out:
            out.write(b"z")
        asyncio.run(watch())
    finally:
        file.close()
    status, reason = ready(server)
    assert status == 503
    assert reason.startswith(f"{path}: changed while it is served")
    assert [one.message for one in caplog.records if str(path) in one.message] == [reason]
    assert ask(server) == 200
    assert server.client.get("/health/live").status_code == 200


def test_the_servers_own_request_is_in_no_metric():
    with toy_server() as server:
        server.wait_until(lambda: server.client.get("/health/ready").status_code == 200)
        counted = {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in server.client.get("/metrics").text.splitlines()
            if line.startswith(("vllm:", "lanewise_")) and "_info{" not in line
        }
        told = {name.partition("{")[0] for name, value in counted.items() if value}
        constant = {"lanewise_ready", "lanewise_kv_blocks", "lanewise_http_connections"}
        constant |= {"lanewise_warm_up_seconds", "lanewise_busy_seconds_total"}
        assert told == constant
        answer = server.client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 2})
        assert answer.json()["usage"]["completion_tokens"] == 2
        for name in ("time_to_first_token_seconds_count", "e2e_request_latency_seconds_count"):
            server.wait_until(lambda name=name: server.metric(f"vllm:{name}") == 1)
