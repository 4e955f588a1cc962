"""What is turned away or given up, and how clients learn of it; nobody else is disturbed."""

import json
from contextlib import ExitStack
from dataclasses import replace

import httpx
import pytest

from raw_http import ENDLESS, OK, connection, post
from toy_server import CONFIG, in_background, toy_server


def last_event(response: httpx.Response) -> dict:
    events = [line[6:] for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    return json.loads(events[-2])


def test_prompts_that_wait_may_hold_so_many_tokens():
    with toy_server(replace(CONFIG, max_seqs=1, max_queued_tokens=100)) as server:
        server.runner.gate.clear()
        body = {**OK, "prompt": [65] * 70}
        threads = [
            in_background(lambda: httpx.post(server.url + "/v1/completions", json=body, timeout=30))
        ]
        server.wait_until(lambda: server.metric("lanewise_step_age_seconds") > 0)
        threads.append(
            in_background(lambda: httpx.post(server.url + "/v1/completions", json=body, timeout=30))
        )
        server.wait_until(lambda: server.metric("lanewise_queued_prompt_tokens") == 70)
        response = server.client.post("/v1/completions", json=body)
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "rate_limit_exceeded"
        assert "prompts of 70 tokens wait already" in response.json()["error"]["message"]
        assert 1 <= int(response.headers["retry-after"]) <= 60
        server.runner.gate.set()
        for thread in threads:
            thread.join()
        assert server.client.post("/v1/completions", json=body).status_code == 200
        assert server.metric("lanewise_requests_rejected_total", reason="queued_tokens") == 1
        assert server.metric("lanewise_queued_prompt_tokens") == 0


@pytest.mark.parametrize("stream", [True, False])
def test_who_waits_too_long_for_a_turn_is_told_and_the_others_go_on(stream):
    with toy_server(replace(CONFIG, max_seqs=1, queue_timeout_s=0.2)) as server:
        server.runner.delay_s = 0.01
        with server.client.stream(
            "POST", "/v1/completions", json={**ENDLESS, "stream": True}
        ) as response:
            lines = response.iter_lines()
            next(lines)
            late = httpx.post(server.url + "/v1/completions", json={**OK, "stream": stream})
            server.runner.delay_s = 0.0
            if stream:
                error = last_event(late)["error"]
            else:
                assert late.status_code == 503
                assert int(late.headers["retry-after"]) >= 1
                error = late.json()["error"]
            assert error["code"] == "queue_timeout"
            assert "has waited for 0.2 s" in error["message"]
            assert len([line for line in lines if line]) == 500  # 499 tokens and [DONE]
        assert server.metric("lanewise_requests_rejected_total", reason="queue_timeout") == 1
        assert server.client.post("/v1/completions", json=OK).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_who_takes_too_long_is_told_and_frees_its_blocks(stream):
    with toy_server(replace(CONFIG, request_timeout_s=0.3)) as server:
        server.runner.delay_s = 0.01
        long = server.client.post("/v1/completions", json={**ENDLESS, "stream": stream})
        if stream:
            assert len(long.text.splitlines()) > 10
            error = last_event(long)["error"]
        else:
            assert (long.status_code, long.headers["x-should-retry"]) == (504, "false")
            error = long.json()["error"]
        assert (error["code"], error["type"]) == ("request_timeout", "timeout_error")
        assert "has taken 0.3 s" in error["message"]
        # The steps that were begun end first.
        server.wait_until(lambda: server.metric("lanewise_kv_blocks_used") == 0)
        assert server.metric("lanewise_requests_rejected_total", reason="time_limit") == 1
        assert server.client.post("/v1/completions", json=OK).status_code == 200


def test_a_step_that_hangs_makes_the_server_not_ready_until_it_ends():
    with toy_server(step_timeout_s=0.1) as server:
        assert server.client.get("/health/ready").status_code == 200
        server.runner.gate.clear()
        thread = in_background(lambda: httpx.post(server.url + "/v1/completions", json=OK))
        server.wait_until(lambda: server.client.get("/health/ready").status_code == 503)
        status = server.client.get("/health/ready").json()["status"]
        assert status.startswith("a step has been running for")
        assert server.client.get("/health/live").status_code == 200
        assert server.metric("lanewise_step_age_seconds") > 0.1
        server.runner.gate.set()
        thread.join()
        assert server.client.get("/health/ready").status_code == 200
        assert server.metric("lanewise_step_age_seconds") == 0


def test_priority_and_keys_decide_who_is_next():
    config = replace(CONFIG, max_seqs=1, max_step_tokens=8, max_queued_requests=16)
    keys = {"api_keys": ("first", "second"), "admin_keys": ("admin",)}
    with toy_server(config, **keys) as server:
        done: list[str] = []
        server.runner.delay_s = 0.02

        def ask(name: str, key: str, **fields: int) -> None:
            headers = {"authorization": f"Bearer {key}"}
            body = {**OK, **fields}
            answer = httpx.post(server.url + "/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            done.append(name)

        server.runner.gate.clear()
        threads = []
        for name, key, fields in (
            *((f"first {i}", "first", {}) for i in range(3)),
            ("second", "second", {}),
            ("urgent", "admin", {"priority": -5}),
        ):
            before = server.state.engine.unfinished
            threads.append(in_background(lambda n=name, k=key, f=fields: ask(n, k, **f)))
            server.wait_until(lambda b=before: server.state.engine.unfinished > b)
        server.runner.gate.set()
        for thread in threads:
            thread.join()
        assert done == ["first 0", "urgent", "second", "first 1", "first 2"]


def test_going_before_others_is_for_administrators_unless_the_server_allows_it():
    keys = {"api_keys": ("user",), "admin_keys": ("admin",)}
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    asked = (("/v1/completions", OK), ("/v1/chat/completions", chat))
    for options, key, status in (
        (keys, "user", 400),
        (keys, "admin", 200),
        ({**keys, "allow_high_priority": True}, "user", 200),
        ({}, "none", 400),
        ({"admin_keys": ("admin",)}, "none", 400),
        ({"admin_keys": ("admin",)}, "admin", 200),
    ):
        with toy_server(**options) as server:
            headers = {"authorization": f"Bearer {key}"}
            for path, body in asked:
                high = server.client.post(path, json={**body, "priority": -1}, headers=headers)
                assert high.status_code == status, (options, key, high.text)
                if status == 400:
                    assert high.json()["error"]["param"] == "priority"
                    assert "admin_api_key" in high.json()["error"]["message"]
                low = server.client.post(path, json={**body, "priority": 3}, headers=headers)
                assert low.status_code == 200


def test_priority_must_be_a_small_whole_number(client):
    response = client.post("/v1/completions", json={**OK, "priority": 2**31})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "priority"


def test_client_that_leaves_after_a_preemption_is_noticed():
    """Waiting to be computed again is a state too in which a client may leave."""
    with toy_server(replace(CONFIG, n_blocks=16)) as server:
        server.runner.delay_s = 0.01
        with ExitStack() as held:
            for index in range(4):
                body = {**ENDLESS, "prompt": f"{index}" * 60, "max_tokens": 440}
                held.enter_context(connection(server)).sendall(post(body))
            server.wait_until(lambda: server.metric("vllm:num_preemptions_total") > 0)
        server.wait_until(lambda: server.state.engine.unfinished == 0)
        server.wait_until(lambda: server.metric("lanewise_kv_blocks_used") == 0)
        assert server.client.post("/v1/completions", json=OK).status_code == 200
