"""What operators rely on: health, metrics, keys, ids, limits, leaving clients, shutting down."""

import asyncio
import json
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import httpx
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families

from lanewise.api.shared.state import Phase
from raw_http import ENDLESS, OK, connection, post
from toy_server import CONFIG, RunningServer, in_background, toy_server


def test_eight_streams_at_once_are_what_each_is_alone(server):
    bodies = [
        {"prompt": f"story {i} " * (i + 1), "max_tokens": 60, "seed": i, "stream": True}
        for i in range(8)
    ]

    def text(body: dict) -> str:
        with (
            httpx.Client(base_url=server.url, timeout=60) as client,
            client.stream("POST", "/v1/completions", json=body) as response,
        ):
            lines = [line[6:] for line in response.iter_lines() if line]
        return "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])

    alone = [text(body) for body in bodies]
    together: dict[int, str] = {}

    def run(index: int) -> None:
        together[index] = text(bodies[index])

    server.runner.gate.clear()
    threads = [in_background(lambda i=i: run(i)) for i in range(8)]
    server.wait_until(lambda: server.state.engine.unfinished == 8)
    server.runner.batches.clear()
    server.runner.gate.set()
    for thread in threads:
        thread.join()
    assert max(len(batch.context_lens) for batch in server.runner.batches) == 8
    assert [together[i] for i in range(8)] == alone


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_while_decoding_frees_its_blocks_within_two_steps(server, stream):
    def cancelled() -> float:
        return server.metric("lanewise_requests_cancelled_total", stage="decode")

    before, tokens = cancelled(), server.metric("vllm:generation_tokens_total")
    server.runner.delay_s = 0.01
    try:
        with connection(server) as sock:
            sock.sendall(post({**ENDLESS, "stream": stream}))
            server.wait_until(lambda: server.metric("vllm:generation_tokens_total") > tokens)
            assert server.metric("lanewise_kv_blocks_used") == 1
        server.wait_until(lambda: cancelled() == before + 1)
        steps = len(server.runner.batches)
        server.wait_until(lambda: server.metric("lanewise_kv_blocks_used") == 0)
        time.sleep(0.1)
        # One may run, and another be begun behind it.
        assert len(server.runner.batches) <= steps + 2, "the engine went on for nobody"
    finally:
        server.runner.delay_s = 0.0


def test_client_that_leaves_in_prefill_or_queue_is_noticed(server):
    def cancelled(stage: str) -> float:
        return server.metric("lanewise_requests_cancelled_total", stage=stage)

    before = {stage: cancelled(stage) for stage in ("prefill", "queue")}
    # More than what is held and what is begun behind it take of a prompt.
    body = {**ENDLESS, "prompt": [65] * 3 * CONFIG.max_step_tokens, "max_tokens": 100}
    left = n_left(server)
    server.runner.gate.clear()
    with ExitStack() as held:
        for _ in range(10):
            sock = held.enter_context(connection(server))
            sock.sendall(post(body))
        server.wait_until(lambda: server.state.engine.unfinished == 10)
    # The server notices while the step is still running.
    server.wait_until(lambda: n_left(server) == left + 10)
    server.runner.gate.set()
    server.wait_until(lambda: server.metric("lanewise_kv_blocks_used") == 0)
    server.wait_until(lambda: server.state.engine.unfinished == 0)
    assert cancelled("prefill") + cancelled("queue") == sum(before.values()) + 10
    assert all(cancelled(stage) > before[stage] for stage in before)


def n_left(server: RunningServer) -> float:
    """Requests for completions whose clients were seen to leave before an answer began."""
    labels = {"method": "POST", "handler": "/v1/completions", "status": "499"}
    registry = server.state.engine.metrics.registry
    return registry.get_sample_value("http_requests_total", labels) or 0.0


def test_full_queue_is_answered_at_once():
    with toy_server(replace(CONFIG, max_seqs=1, max_queued_requests=1)) as server:
        server.runner.gate.clear()
        threads = [
            in_background(lambda: httpx.post(server.url + "/v1/completions", json=OK, timeout=30))
            for _ in range(2)
        ]
        server.wait_until(lambda: server.state.engine.unfinished == 2)
        response = server.client.post("/v1/completions", json={**OK, "stream": True})
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(response.headers["retry-after"]) >= 1
        server.runner.gate.set()
        for thread in threads:
            thread.join()
        assert server.client.post("/v1/completions", json=OK).status_code == 200
        assert server.metric("lanewise_requests_rejected_total", reason="queue_full") == 1


def test_draining_lets_answers_end_and_takes_no_new_ones():
    with toy_server() as server:
        server.runner.delay_s = 0.005
        with server.client.stream(
            "POST", "/v1/completions", json={**ENDLESS, "max_tokens": 40, "stream": True}
        ) as response:
            lines = response.iter_lines()
            next(lines)
            server.state.phase = Phase.DRAINING
            server.state.engine.stop_accepting()
            assert httpx.get(server.url + "/health/ready").status_code == 503
            assert httpx.get(server.url + "/health/live").status_code == 200
            refused = httpx.post(server.url + "/v1/completions", json=OK)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "service_unavailable"
            assert len([line for line in lines if line]) == 40  # 39 tokens and [DONE]


def test_stopping_engine_tells_its_streams():
    with toy_server() as server:
        server.runner.delay_s = 0.01
        with server.client.stream(
            "POST", "/v1/completions", json={**ENDLESS, "stream": True}
        ) as response:
            lines = response.iter_lines()
            next(lines)
            server.state.engine.stop()
            events = [line[6:] for line in lines if line]
        assert events[-1] == "[DONE]"
        error = json.loads(events[-2])["error"]
        assert (error["code"], error["message"]) == (
            "service_unavailable",
            "the server is shutting down",
        )
        assert server.runner.closed
        assert server.client.get("/health").status_code == 503


def test_ready_only_after_a_real_request():
    with toy_server() as server:
        assert server.client.get("/health/ready").json() == {"status": "ready"}
        assert server.runner.batches
        server.state.phase = Phase.WARMING_UP
        response = server.client.get("/health/ready")
        assert (response.status_code, response.json()) == (503, {"status": "warming up"})
        assert server.client.get("/health").status_code == 200


def test_request_id_is_kept_or_made(client):
    given = client.get("/v1/models", headers={"x-request-id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    made = {client.get("/v1/models").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    error = client.get("/nothing", headers={"x-request-id": "abc-2"})
    assert error.headers["x-request-id"] == "abc-2"
    odd = client.get("/v1/models", headers={"x-request-id": "x" * 500})
    assert len(odd.headers["x-request-id"]) == 32


def test_model_is_listed(client, server):
    model = client.get("/v1/models").json()["data"][0]
    assert (model["id"], model["object"], model["max_model_len"]) == ("toy", "model", 512)
    assert client.get("/v1/models/toy").json() == model


def test_tokenizer_answers_evaluation_tools(client):
    tokens = client.post("/tokenize", json={"prompt": "the <s>", "return_token_strs": True}).json()
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    assert tokens["token_strs"][0] == "<s>"
    assert client.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {
        "prompt": "<s>the <s>",
        "content": "<s>the <s>",
    }
    plain = client.post("/tokenize", json={"prompt": "the", "add_special_tokens": False}).json()
    assert len(plain["tokens"]) == 1
    info = client.get("/tokenizer_info").json()
    assert (info["bos_token"], info["eos_token"]) == ("<s>", "</s>")
    assert "messages" in info["chat_template"]
    assert client.post("/tokenize", json={}).status_code == 400
    assert client.post("/detokenize", json={"tokens": [10**6]}).status_code == 400


def test_documentation_has_the_fields(client):
    spec = client.get("/openapi.json").json()
    schemas = spec["components"]["schemas"]
    assert {"prompt", "echo", "max_tokens"} <= schemas["CompletionRequest"]["properties"].keys()
    text = json.dumps(spec)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in schemas
    assert client.get("/docs").status_code == 200


def test_metrics_are_those_dashboards_read(client, server):
    client.post("/v1/completions", json={**ENDLESS, "max_tokens": 5})
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    text = response.text
    for name in (
        *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
        *("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:cache_config_info"),
        *("vllm:num_preemptions_total", "vllm:iteration_tokens_total_bucket"),
        *("vllm:request_prompt_tokens_bucket", "vllm:request_params_n_bucket"),
        *("lanewise_gemm_rows_total", "lanewise_gemv_calls_total", "lanewise_info"),
        *("lanewise_busy_seconds_total", "lanewise_native_seconds_total"),
        *("vllm:prompt_tokens_by_source_total", "vllm:prompt_tokens_cached_total"),
        *("vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total"),
        *("vllm:gpu_cache_usage_perc", "vllm:num_requests_waiting_by_reason"),
        *("vllm:lora_requests_info",),
        *("lanewise_kv_blocks", "process_resident_memory_bytes", "http_requests_total"),
    ):
        assert f"\n{name}{{" in text or f"\n{name} " in text, name
    bounds = [
        line.split('le="')[1].split('"')[0]
        for line in text.splitlines()
        if line.startswith("vllm:time_to_first_token_seconds_bucket")
    ]
    assert bounds[:3] == ["0.001", "0.005", "0.01"]
    assert bounds[-2:] == ["2560.0", "+Inf"]
    assert server.metric("vllm:request_success_total", finished_reason="length") >= 1
    assert server.metric("vllm:e2e_request_latency_seconds_count") >= 1
    assert server.metric("lanewise_gemm_calls_total") > 0
    assert 'handler="/v1/completions"' in text


def test_the_first_error_of_its_kind_is_an_increase(client):
    text = client.get("/metrics").text
    paths = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/invocations")
    for path in (*paths, "/api/generate", "/completion"):
        for status in (500, 503, 529):
            series = f'handler="{path}",method="POST",status="{status}"'
            assert f"\nhttp_requests_total{{{series}}} 0.0\n" in text


# What the endpoint picker of the Gateway API Inference Extension reads of a server, by default.
PICKER = {
    "vllm:num_requests_waiting": set(),
    "vllm:num_requests_running": set(),
    "vllm:kv_cache_usage_perc": set(),
    "vllm:gpu_cache_usage_perc": set(),  # the first releases
    "vllm:lora_requests_info": {"max_lora", "running_lora_adapters", "waiting_lora_adapters"},
    "vllm:cache_config_info": {"block_size", "num_gpu_blocks"},
}
PROMETHEUS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


@pytest.mark.parametrize("accept", ["text/plain;version=0.0.4", PROMETHEUS])
def test_both_formats_are_what_they_say_and_have_what_endpoint_pickers_read(client, accept):
    response = client.get("/metrics", headers={"accept": accept})
    is_open = accept == PROMETHEUS
    expected = "application/openmetrics-text; version=1.0.0" if is_open else "text/plain; version="
    assert response.headers["content-type"].startswith(expected)
    parse = parse_open_metrics if is_open else text_string_to_metric_families
    families = {family.name: family for family in parse(response.text)}
    for name, labels in PICKER.items():
        assert families[name].type == "gauge"
        (sample,) = families[name].samples
        assert labels <= sample.labels.keys()
    # The same series under both: what was scraped in one is continued in the other.
    other = client.get("/metrics").text
    names = {one.name for family in families.values() for one in family.samples}
    assert all(f"\n{name}{{" in other or f"\n{name} " in other for name in names)


def test_long_prompts_leave_the_event_loop_free(server, monkeypatch):
    """Health is answered while a text is tokenized, however long that takes."""
    begun, may_end = threading.Event(), threading.Event()
    add_piece = server.state.tokenizer.add_piece

    def slowly(*piece, **options) -> None:
        begun.set()
        assert may_end.wait(60)
        add_piece(*piece, **options)

    monkeypatch.setattr(server.state.tokenizer, "add_piece", slowly)
    counts = []

    def ask() -> None:
        body = {"prompt": "the inner end " * 40_000}
        answer = httpx.post(server.url + "/tokenize", json=body, timeout=60)
        counts.append(answer.json()["count"])

    thread = in_background(ask)
    try:
        assert begun.wait(60)
        for _ in range(3):
            assert server.client.get("/health").status_code == 200
        assert not counts
    finally:
        may_end.set()
    thread.join()
    assert counts[0] > 40_000


def test_scrapers_at_once_share_one_text_and_get_none_older_than_they_asked():
    with toy_server() as server:
        rendered = 0
        render = server.state.scrapes._render

        def counting(open_metrics: bool) -> bytes:
            nonlocal rendered
            rendered += 1
            return render(open_metrics)

        server.state.scrapes._render = counting

        async def scrape(times: int) -> list[str]:
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                answers = await asyncio.gather(*(client.get("/metrics") for _ in range(times)))
            return [answer.text for answer in answers]

        texts = asyncio.run(scrape(60))
        assert rendered < 20
        assert all("\nhttp_requests_total{" in text for text in texts)
        for n in range(1, 4):
            assert server.client.get("/v1/models").status_code == 200
            (text,) = asyncio.run(scrape(1))
            assert f'handler="/v1/models",method="GET",status="200"}} {n}.0' in text
