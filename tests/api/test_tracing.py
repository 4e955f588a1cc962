"""Spans and access logs of requests: a collector gets what they went through."""

import json
import logging
import sys
from dataclasses import replace

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lanewise.api.observing.logs import JsonFormatter
from lanewise.api.observing.tracing import Tracer
from lanewise.settings import SettingsError
from otlp_collector import attributes, collecting
from serving import lanewise_server
from toy_server import CONFIG, toy_server

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "seed": 1}
LONG = replace(CONFIG, max_model_len=1024)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 4}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}


@pytest.fixture
def traced():
    with collecting() as (endpoint, collected):
        tracer = Tracer(endpoint, "0")
        with toy_server(LONG, tracer=tracer) as server:

            def spans(name):
                """All that has come once there is one of this name."""

                def has_come():
                    tracer._provider.force_flush()
                    return any(span.name == name for _, span in collected)

                server.wait_until(has_come)  # its request is over a moment after its answer
                return collected

            yield server, spans
            tracer.close()


def test_a_streamed_call_of_a_tool_is_a_span_of_the_callers_trace(traced):
    server, spans = traced
    body = CHAT | {"stream": True, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200}
    headers = {"traceparent": PARENT}
    url = "/v1/chat/completions"
    with server.client.stream("POST", url, json=body, headers=headers) as response:
        given = response.headers["traceresponse"]
        events = [line for line in response.iter_lines() if line]
    assert events[-1] == "data: [DONE]"
    found = [
        (service, span) for service, span in spans(f"POST {url}") if span.trace_id.hex() in PARENT
    ]
    assert {service for service, _ in found} == {"lanewise"}
    by_name = {span.name: span for _, span in found}
    assert by_name.keys() == {f"POST {url}", "queue", "prefill", "decode"}
    root = by_name.pop(f"POST {url}")
    assert root.parent_span_id.hex() == PARENT.split("-")[2]
    assert given == f"00-{PARENT.split('-')[1]}-{root.span_id.hex()}-01"
    last = root.start_time_unix_nano
    for name in ("queue", "prefill", "decode"):
        child = by_name[name]
        assert child.parent_span_id == root.span_id
        slack = 2_000_000  # two clocks that are read one after the other
        assert child.start_time_unix_nano >= last - slack
        assert child.end_time_unix_nano >= child.start_time_unix_nano
        last = child.end_time_unix_nano
    assert last <= root.end_time_unix_nano + slack
    said = attributes(root)
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.request.max_tokens"] == 200
    assert said["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert said["gen_ai.usage.output_tokens"] > 5
    assert said["http.response.status_code"] == 200
    assert said["lanewise.tools"] == 1


def exemplars(text):
    """The traces that each histogram names."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.exemplar is not None:
                assert sample.exemplar.value <= float(sample.labels["le"])
                found.setdefault(family.name, set()).add(sample.exemplar.labels["trace_id"])
    return found


def test_histograms_name_traces_as_examples_of_what_they_count(traced, caplog):
    server, spans = traced
    sampled, left_out = PARENT, f"00-{'9' * 32}-{'9' * 16}-00"
    body = {"prompt": "abc", "max_tokens": 3, "ignore_eos": True}
    with caplog.at_level(logging.INFO, "lanewise.access"):
        for parent in (sampled, left_out):
            answer = server.client.post(
                "/v1/completions", json=body, headers={"traceparent": parent}
            )
            assert answer.status_code == 200
        spans("POST /v1/completions")
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    told = exemplars(server.client.get("/metrics", headers=accept).text)
    of_requests = ("time_to_first_token", "e2e_request_latency", "request_queue_time")
    names = {f"vllm:{name}_seconds" for name in of_requests}
    names |= {"vllm:request_time_per_output_token_seconds", "http_request_duration_seconds"}
    assert told.keys() == names
    trace = PARENT.split("-")[1]
    assert all(trace in traces and "9" * 32 not in traces for traces in told.values())
    assert "# {" not in server.client.get("/metrics").text
    logged = [one.fields.get("trace_id") for one in caplog.records if hasattr(one, "fields")]
    assert logged[:2] == [trace, None]


def test_what_fails_is_a_span_too(traced):
    server, spans = traced
    assert server.client.post("/v1/completions", json={"prompt": []}).status_code == 400
    assert server.client.get("/nowhere").status_code == 404
    bad = server.client.get("/health/ready", headers={"traceparent": "nonsense"})
    assert bad.status_code == 200
    statuses = {
        span.name: attributes(span)["http.response.status_code"]
        for _, span in spans("GET /health/ready")
    }
    assert statuses["POST /v1/completions"] == 400
    assert statuses["GET none"] == 404
    assert statuses["GET /health/ready"] == 200


def test_an_access_log_has_fields(caplog):
    asked = [
        ("/v1/chat/completions", CHAT),
        (
            "/v1/completions",
            {"prompt": "abc", "max_tokens": 3, "n": 2, "stream": True, "ignore_eos": True},
        ),
        ("/v1/completions", {"max_tokens": "many", "prompt": "a"}),
    ]
    with toy_server() as server, caplog.at_level(logging.INFO, "lanewise.access"):
        for count, (path, body) in enumerate(asked, start=1):
            server.client.post(path, json=body)
            # A request is logged when its answer has gone.
            server.wait_until(
                lambda count=count: (
                    sum(one.name == "lanewise.access" for one in caplog.records) == count
                )
            )
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    chat, streamed, refused = (line for line in lines if line["logger"] == "lanewise.access")
    assert (chat["method"], chat["path"], chat["status"]) == ("POST", "/v1/chat/completions", 200)
    assert 0 < chat["queue_s"] < chat["first_token_s"] < chat["seconds"]
    assert (chat["model"], chat["stream"], len(chat["finish_reasons"])) == ("toy", False, 1)
    assert (streamed["stream"], streamed["completion_tokens"]) == (True, 6)
    assert streamed["finish_reasons"] == ["length", "length"]
    assert (refused["status"], "model" in refused) == (400, False)
    assert "toy" in chat["message"]
    assert "tokens, first after" in chat["message"]


@pytest.mark.native
@pytest.mark.usefixtures("library")
def test_a_server_sends_its_spans_before_it_ends(monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "llm")
    with collecting() as (endpoint, collected):
        with lanewise_server("--threads", "1", "--otlp-traces-endpoint", endpoint) as url:
            answer = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 2})
            assert answer.status_code == 200
        assert ("llm", "POST /v1/completions") in [(name, span.name) for name, span in collected]


def test_without_the_package_it_says_which_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SettingsError, match=r"pip install opentelemetry-sdk"):
        Tracer("http://127.0.0.1:9/v1/traces", "0")
