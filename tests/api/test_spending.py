"""What keys use is counted, kept and held against limits, over a socket."""

import csv
import datetime
import io
import json
import sqlite3
from contextlib import contextmanager

import httpx
import openai
import pytest

from kept import keeping_server
from lanewise.api.batches.runner import BatchRules
from lanewise.api.http.keys import tenant_of
from lanewise.api.shared.spending import Spending, written
from lanewise.records.database import Database
from lanewise.records.usage import UsageStore
from lanewise.server.make_records import PARTS
from lanewise.settings import Limits
from toy_encoder import encoder_server
from toy_server import toy_server

ONE, OTHER, ADMIN = "key-of-one", "key-of-another", "key-of-admin"
NOON = datetime.datetime(2026, 11, 29, 12, 0, 20, tzinfo=datetime.UTC).timestamp()
PROMPT = {"prompt": [65] * 20, "max_tokens": 5, "ignore_eos": True}
BODIES = {
    "/v1/completions": PROMPT,
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 16},
    "/v1/messages": {
        "model": "toy",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 3,
    },
    "/api/chat": {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "stream": False},
    "/completion": {"prompt": "hi", "n_predict": 3},
    "/v1/classify": {"input": "hi", "labels": ["a", "b"]},
}


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@contextmanager
def counting(clock, limits=None, of=None, **options):
    spending = Spending(limits or Limits(), of, clock=clock)
    keys = {"api_keys": (ONE, OTHER), "admin_keys": (ADMIN,)}
    with toy_server(spending=spending, **keys, **options) as running:
        yield running


def ask(server, path="/v1/completions", key=ONE, body=None):
    headers = {"authorization": f"Bearer {key}"}
    return server.client.post(path, json=body or BODIES[path], headers=headers)


def told(answer):
    found = {k: v for k, v in answer.headers.items() if "ratelimit" in k}
    return {k.removeprefix("x-ratelimit-"): v for k, v in found.items()}


def test_headers_count_down_and_the_last_request_is_refused(clock):
    limits = Limits(requests_per_minute=2, tokens_per_minute=1000)
    with counting(clock, limits) as server:
        first = ask(server)
        assert told(first) == {
            "limit-requests": "2",
            "remaining-requests": "1",
            "reset-requests": "40s",
            "limit-tokens": "1000",
            # The answer has begun: what it is made of is counted already.
            "remaining-tokens": "975",
            "reset-tokens": "40s",
        }
        assert told(ask(server))["remaining-requests"] == "0"
        refused = ask(server)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "40"
        assert "x-should-retry" not in refused.headers
        assert refused.json()["error"] == {
            "message": "this key has used its 2 requests of this minute (requests_per_minute);"
            " more in 40s",
            "type": "rate_limit_error",
            "param": None,
            "code": "rate_limit_exceeded",
        }
        assert told(refused)["remaining-requests"] == "0"
        assert ask(server, key=OTHER).status_code == 200
        assert ask(server, key=ADMIN).status_code == 200
        assert told(ask(server, key=ADMIN)) == {}
        clock.now += 40
        assert told(ask(server)) | {"reset-tokens": ""} == {
            **told(first),
            "reset-requests": "1m0s",
            "reset-tokens": "",
        }
        text = httpx.get(server.url + "/metrics").text
        assert 'lanewise_budget_refusals_total{limit="requests_per_minute"} 1.0' in text


@pytest.mark.parametrize("path", BODIES)
def test_every_dialect_refuses_in_its_own_words(clock, path):
    with counting(clock, Limits(tokens_per_day=1)) as server:
        first = ask(server, path)
        assert first.status_code == 200, first.text
        refused = ask(server, path)
        assert refused.status_code == 429
        error = refused.json()["error"]
        message = error if isinstance(error, str) else error["message"]
        assert message == (
            "this key has used its 1 tokens of this day (tokens_per_day); more in 11h59m40s"
        )
        assert refused.headers["retry-after"] == str(12 * 3600 - 20)
        assert refused.headers["x-should-retry"] == "false"
        if path == "/v1/messages":
            assert error["type"] == "rate_limit_error"
            assert told(refused) == {
                "anthropic-ratelimit-tokens-limit": "1",
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2026-11-30T00:00:00Z",
            }
        else:
            assert told(refused)["remaining-tokens"] == "0"


def test_what_is_not_computed_is_not_counted(clock):
    with counting(clock, Limits(requests_per_day=1)) as server:
        headers = {"authorization": f"Bearer {ONE}"}
        for _ in range(3):
            assert told(server.client.get("/v1/models", headers=headers)) == {}
            assert ask(server, "/tokenize", body={"prompt": "x"}).status_code == 200
            count = {"model": "toy", "messages": [{"role": "user", "content": "x"}]}
            assert ask(server, "/v1/messages/count_tokens", body=count).status_code == 200
        assert server.client.post("/v1/completions", json=PROMPT).status_code == 401
        assert ask(server).status_code == 200
        assert ask(server).status_code == 429


def test_what_runs_counts_as_far_as_it_has_come(clock):
    with counting(clock, Limits(tokens_per_minute=60)) as server:
        headers = {"authorization": f"Bearer {ONE}"}
        body = {"prompt": [65] * 70, "max_tokens": 200, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body, headers=headers) as stream:
            next(stream.iter_lines())
            assert ask(server).status_code == 429
            assert ask(server, key=OTHER).status_code == 200


def test_a_key_may_have_limits_of_its_own(clock):
    of = {tenant_of(ONE): Limits(), tenant_of(OTHER): Limits(requests_per_day=2)}
    with counting(clock, Limits(requests_per_day=1), of) as server:
        assert [ask(server).status_code for _ in range(4)] == [200] * 4
        assert [ask(server, key=OTHER).status_code for _ in range(3)] == [200, 200, 429]


def test_of_two_limits_the_nearer_is_told(clock):
    limits = Limits(requests_per_minute=5, requests_per_day=3)
    with counting(clock, limits) as server:
        shown = [told(ask(server)) for _ in range(2)]
        assert [one["limit-requests"] for one in shown] == ["3", "3"]
        assert shown[1]["remaining-requests"] == "1"


def test_texts_of_models_that_are_pooled_count(clock):
    spending = Spending(Limits(tokens_per_minute=5), clock=clock)
    with encoder_server(options={"spending": spending}) as running:
        body = {"input": "the river rises slowly over the houses"}
        assert running.client.post("/v1/embeddings", json=body).status_code == 200
        assert running.client.post("/v1/embeddings", json=body).status_code == 429


@contextmanager
def keeping(folder, clock, limits=None):
    """A server whose counts are kept."""

    def spending(records):
        names = {tenant_of(ONE): "=one"}
        return Spending(limits or Limits(), None, UsageStore(records), names, clock)

    keys = {"api_keys": (ONE, OTHER), "admin_keys": (ADMIN,)}
    rules = BatchRules(2)
    with keeping_server(folder, spending_of=spending, batch_rules=rules, **keys) as running:
        yield running


def report(server, key=ADMIN, **query):
    headers = {"authorization": f"Bearer {key}"}
    return server.client.get("/v1/usage", params=query, headers=headers)


def test_days_and_minutes_survive_a_restart(tmp_path, clock):
    limits = Limits(requests_per_minute=3, requests_per_day=5)
    with keeping(tmp_path, clock, limits) as server:
        assert [ask(server).status_code for _ in range(2)] == [200, 200]
    with keeping(tmp_path, clock, limits) as server:
        assert [ask(server).status_code for _ in range(2)] == [200, 429]
        clock.now += 60
        assert [ask(server).status_code for _ in range(3)] == [200, 200, 429]
        clock.now += 86400
        assert ask(server).status_code == 200
        clock.now -= 86400  # a clock that was set back: that day is spent already
        assert ask(server).status_code == 429


def test_reports_have_days_keys_and_models(tmp_path, clock):
    with keeping(tmp_path, clock) as server:
        for key in (ONE, ONE, OTHER):
            assert ask(server, key=key).status_code == 200
        clock.now += 86400
        ask(server, "/v1/classify")
        rows = report(server).json()["data"]
        other = tenant_of(OTHER)[:12]
        assert [(row["day"], row["key"], row["requests"]) for row in rows] == sorted(
            [("2026-11-29", "=one", 2), ("2026-11-29", other, 1), ("2026-11-30", "=one", 1)],
            key=lambda row: (row[0], tenant_of(ONE if row[1] == "=one" else OTHER)),
        )
        first = next(row for row in rows if row["requests"] == 2)
        counts = [first[f"{name}_tokens"] for name in ("prompt", "cached", "completion")]
        assert (first["model"], counts) == ("toy", [40, 19, 10])
        mine = report(server, key=OTHER).json()["data"]
        assert [row["key"] for row in mine] == [other]
        assert len(report(server, first_day="2026-11-30").json()["data"]) == 1
        assert len(report(server, last_day="2026-11-29").json()["data"]) == 2
        text = report(server, format="csv")
        assert text.headers["content-type"] == "text/csv; charset=utf-8"
        lines = list(csv.DictReader(io.StringIO(text.text)))
        assert [line["prompt_tokens"] for line in lines] == [
            str(row["prompt_tokens"]) for row in rows
        ]
        assert {line["key"] for line in lines} == {"'=one", other}  # never a formula
        for query in ({"format": "xml"}, {"first_day": "yesterday"}, {"last_day": "2026-02-30"}):
            error = report(server, **query)
            assert error.status_code == 400
            assert error.json()["error"]["param"] == next(iter(query))


def test_a_batch_counts_for_its_key_and_waits_for_its_limits(tmp_path, clock):
    with keeping(tmp_path, clock, Limits(requests_per_minute=2)) as server:
        assert ask(server, "/v1/classify").status_code == 200
        body = json.dumps({"input": "hi", "labels": ["a", "b"]})
        lines = "".join(
            f'{{"custom_id":"{i}","method":"POST","url":"/v1/classify","body":{body}}}\n'
            for i in range(2)
        )
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key=ONE, max_retries=0) as sdk:
            file = sdk.files.create(file=("in.jsonl", lines.encode()), purpose="batch")
            batch = sdk.batches.create(
                input_file_id=file.id, endpoint="/v1/classify", completion_window="24h"
            )

            def counts():
                return sdk.batches.retrieve(batch.id).request_counts

            server.wait_until(lambda: counts() is not None and counts().completed == 1)
            assert ask(server, "/v1/classify").status_code == 429
            clock.now += 60
            server.wait_until(lambda: sdk.batches.retrieve(batch.id).status == "completed")
        (row,) = report(server).json()["data"]
        assert row["requests"] == 3


def test_what_cannot_be_written_is_written_later(tmp_path, clock, monkeypatch):
    with keeping(tmp_path, clock) as server:
        store = server.state.spending.store
        add = store.add

        def fail(*_):
            raise sqlite3.OperationalError("disk full")

        monkeypatch.setattr(store, "add", fail)
        assert ask(server).status_code == 200
        assert report(server).json()["data"] == []
        monkeypatch.setattr(store, "add", add)
        assert ask(server).status_code == 200
        (row,) = report(server).json()["data"]
        assert row["requests"] == 2
    records = Database(tmp_path, PARTS)
    assert UsageStore(records).of_day("2026-11-29")[tenant_of(ONE)].requests == 2
    records.close()


def test_without_a_directory_there_is_no_report(clock):
    with counting(clock) as server:
        answer = report(server)
        assert answer.status_code == 501
        assert "--data-dir" in answer.json()["error"]["message"]


def test_times_are_written_as_others_do():
    times = {0.2: "1s", 1: "1s", 60: "1m0s", 360: "6m0s", 3723: "1h2m3s", 86400: "24h0m0s"}
    assert {seconds: written(seconds) for seconds in times} == times
