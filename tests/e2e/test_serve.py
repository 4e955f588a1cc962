"""The process: it starts or says why not, survives bad input, and leaves in order."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from lanewise.api.http_server import LAST_WORDS_S
from lanewise.loading.checkpoints.hub import resolve_model
from serving import free_port, lanewise_server, metric, running, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.native]

OK = {"prompt": "The sea", "max_tokens": 2}


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lanewise", "serve", "--threads", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def assert_one_line(result: subprocess.CompletedProcess[str], *says: str, status: int = 1) -> None:
    assert result.returncode == status, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("lanewise: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    for text in says:
        assert text in lines[0]


def test_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert_one_line(serve("--port", str(port)), f"port {port} on 127.0.0.1", "in use")


def test_unknown_host():
    assert_one_line(serve("--host", "nowhere.invalid"), "nowhere.invalid")


def test_broken_models(tmp_path):
    whole = resolve_model(None).read_bytes()
    truncated = tmp_path / "truncated.gguf"
    truncated.write_bytes(whole[: len(whole) // 2])
    assert_one_line(serve("--port", "0", str(truncated)), str(truncated))
    nonsense = tmp_path / "nonsense.gguf"
    nonsense.write_bytes(b"nonsense" * 100)
    assert_one_line(serve("--port", "0", str(nonsense)), str(nonsense))
    assert_one_line(serve("--port", "0", str(tmp_path / "absent.gguf")), "absent.gguf")
    (tmp_path / "empty").mkdir()
    assert_one_line(serve("--port", "0", str(tmp_path / "empty")), "empty")


def test_settings_that_cannot_be_met(tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{% for %}")
    assert_one_line(serve("--port", "0", "--chat-template", str(template)), "template", status=2)
    too_long = serve("--port", "0", "--max-model-len", "1000000")
    assert_one_line(too_long, "max_model_len is 1000000", status=2)
    assert_one_line(serve("--port", "0", "--max-seqs", "600"), "max_step_tokens = 512", status=2)
    bodies = serve("--port", "0", "--request-memory", "1MiB")
    assert_one_line(bodies, "accepted: at least max_body_bytes = 8388608", status=2)
    small = serve("--port", "0", "--kv-memory", "1MiB", "--max-model-len", "512")
    assert_one_line(small, "max_model_len is 512; the KV cache of")


def test_bad_requests_are_survived(url):
    with httpx.Client(base_url=url, timeout=60) as client:
        asked = [
            ({"content": b'{"prompt": "\xff"}'}, 400, None),
            ({"content": b"{"}, 400, None),
            ({"json": {**OK, "prompt": "x" * 10_000_000}}, 413, "request_too_large"),
            ({"json": {**OK, "prompt": "sea " * 1_500_000}}, 400, "context_length_exceeded"),
            ({"json": {**OK, "prompt": [5] * 600}}, 400, "context_length_exceeded"),
            ({"json": {**OK, "model": "another"}}, 404, "model_not_found"),
            ({"json": {**OK, "prompt": [10**9]}}, 400, None),
        ]
        for body, status, code in asked:
            response = client.post("/v1/completions", **body)
            assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert client.post("/v1/completions", json=OK).status_code == 200


def test_disconnected_client_frees_its_blocks(url):
    with httpx.Client(base_url=url, timeout=60) as client:
        # Sixteen answers take longer than to look at a metric.
        body = {"prompt": "The sea", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json={**body, "n": 16}) as response:
            lines = response.iter_lines()  # closes the connection when it is collected
            next(lines)
            assert metric(url, "lanewise_kv_blocks_used") >= 1
        wait_for(lambda: metric(url, "lanewise_kv_blocks_used") == 0, "blocks are given back")
        assert metric(url, 'lanewise_requests_cancelled_total{engine="0",model_name="') == 16
        assert metric(url, "vllm:generation_tokens_total") < 16 * 390
        assert metric(url, "lanewise_gemm_calls_total") > 0


def test_sigterm_lets_answers_end_then_exits_with_zero():
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "lanewise", "serve", "--threads", "1", "--port", str(port)]
    # Scalar kernels: the answer takes longer than to ask twice beside it.
    command += ["--isa", "scalar"]
    with running(command, f"{url}/health/ready") as process, httpx.Client(timeout=60) as client:
        body = {"prompt": "The sea", "max_tokens": 30, "ignore_eos": True, "stream": True}
        body |= {"return_token_ids": True}  # each token has an event, text or not
        with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 20
            while httpx.get(f"{url}/health/ready").status_code == 200:
                assert time.monotonic() < deadline
            # It may be a tenth of a second until the engine knows.
            while httpx.post(f"{url}/v1/completions", json=OK).status_code != 503:
                assert time.monotonic() < deadline
            events = [line for line in lines if line]
        assert len(events) == 30  # 29 tokens and [DONE]
        assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert process.wait(20) == 0


def test_stopping_is_told(tmp_path):
    """What is drained, for how long, the second signal, and the end."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = tmp_path / "log"
    script = 'exec "$@" 2>"$LOG"'
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "lanewise", "serve"]
    command += ["--threads", "1", "--isa", "scalar", "--port", str(port), "--lame-duck-s", "1.5"]
    env = {**os.environ, "LOG": str(log)}
    with (
        running(command, f"{url}/health/ready", env=env) as process,
        httpx.Client(timeout=60) as client,
    ):
        assert metric(url, "lanewise_ready ") == 1
        assert metric(url, "lanewise_memory_limit_bytes") > metric(url, "lanewise_memory_used_byt")
        body = {"prompt": "The sea", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            wait_for(lambda: "SIGTERM: stopping" in log.read_text(), "the first signal's line")
            assert metric(url, "lanewise_ready ") == 0
            process.send_signal(signal.SIGINT)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert process.wait(20) == 0
    text = log.read_text()
    assert "SIGTERM: stopping, 1 running, 0 waiting; new requests are refused in 1.5 s" in text
    assert "SIGINT again: 1 running, 0 waiting, all cut off" in text
    assert text.splitlines()[-1].endswith("stopped")


def test_a_lame_duck_takes_requests_but_no_health_check_sends_it_any():
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "lanewise", "serve", "--threads", "1", "--port", str(port)]
    command += ["--lame-duck-s", "3"]
    with running(command, f"{url}/health/ready") as process, httpx.Client(timeout=60) as client:
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        while client.get(f"{url}/health/ready").status_code == 200:
            assert time.monotonic() < began + 2
        answered, status = 0, 200
        while status == 200:
            try:
                status = client.post(f"{url}/v1/completions", json=OK).status_code
            except httpx.TransportError:  # with nothing left to do, it ends at once
                status = 503
            answered += status == 200
        assert (status, answered > 0) == (503, True)
        assert time.monotonic() >= began + 3
        assert process.wait(20) == 0


def test_answers_that_do_not_end_in_time_are_told():
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "lanewise", "serve", "--port", str(port)]
    # Scalar kernels: the answer takes seconds, so it cannot be complete before the server gives up.
    command += ["--threads", "1", "--isa", "scalar", "--drain-timeout-s", "0.2"]
    with running(command, f"{url}/health/ready") as process, httpx.Client(timeout=60) as client:
        body = {"prompt": "The sea", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            threading.Timer(0.1, lambda: process.send_signal(signal.SIGTERM)).start()
            events = [line[6:] for line in lines if line]
        assert json.loads(events[-2])["error"]["message"] == "the server is shutting down"
        assert events[-1] == "[DONE]"
        assert process.wait(20) == 0


def test_requests_that_are_not_complete_are_not_waited_for():
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "lanewise", "serve", "--threads", "1", "--port", str(port)]
    with (
        running(command, f"{url}/health/ready") as process,
        socket.create_connection(("127.0.0.1", port), timeout=20) as body,
        socket.create_connection(("127.0.0.1", port), timeout=20) as head,
    ):
        head.sendall(b"GET / HTTP")
        body.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        wait_for(lambda: metric(url, "lanewise_http_connections") >= 3, "both are connected")
        process.send_signal(signal.SIGTERM)
        body.settimeout(LAST_WORDS_S - 1)
        assert b" 503 " in body.recv(4096)
        assert head.recv(4096) == b""
        body.close()
        assert process.wait(20) == 0


def test_a_cache_of_codes_holds_more_tokens_and_answers():
    blocks, texts = {}, {}
    for dtype in ("f16", "int8", "q4"):
        options = ("--threads", "1", "--kv-cache-dtype", dtype, "--kv-memory", "8MiB")
        with (
            lanewise_server(*options) as url,
            httpx.Client(base_url=url, timeout=60) as client,
        ):
            body = {"prompt": "It was a dark night, and", "max_tokens": 40, "temperature": 0}
            texts[dtype] = [
                client.post("/v1/completions", json=body).json()["choices"][0]["text"]
                for _ in range(2)
            ]
            (info,) = (
                line
                for line in client.get("/metrics").text.splitlines()
                if line.startswith("vllm:cache_config_info{")
            )
            assert f'cache_dtype="{dtype}"' in info
            blocks[dtype] = metric(url, "lanewise_kv_blocks{")
    assert 1.75 < blocks["int8"] / blocks["f16"] < 2
    assert 3 < blocks["q4"] / blocks["f16"] < 4
    for first, second in texts.values():
        assert first == second
        assert first.strip()
    # The cache's rounding is far below what decides between two words here.
    assert texts["int8"][0][:20] == texts["f16"][0][:20]


def test_a_prompt_that_begins_alike_is_answered_from_the_cache_with_the_same_bits(url):
    def ask(prompt, salt):
        body = {"prompt": prompt, "max_tokens": 8, "seed": 2, "logprobs": 3, "cache_salt": salt}
        answer = httpx.post(url + "/v1/completions", json=body, timeout=60).json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached, answer["choices"][0]["text"], answer["choices"][0]["logprobs"]

    text = "The sea was calm that morning, and nobody on the shore had yet seen the ship. " * 5
    for ending in ("Then", "Only the gulls", "At noon"):
        cold = ask(text + ending, "alone: " + ending)
        ask(text + "Before that", "shared")
        warm = ask(text + ending, "shared")
        assert cold[0] == 0 < warm[0]
        assert warm[1:] == cold[1:]
