"""/v1/batches: the openai package unmodified; what it answers is what asking one by one gives."""

import json
import time
from dataclasses import replace
from datetime import datetime

import openai
import pytest

from kept import KEYS, keeping_server
from lanewise.api.batches.runner import BatchRules
from lanewise.batches import table
from lanewise.batches.hours import Hours

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with keeping_server(folder, api_keys=KEYS, batch_rules=BatchRules(6)) as running:
        yield running


@pytest.fixture
def sdk(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS[0], max_retries=0) as sdk:
        yield sdk


def line(custom_id, body, url=CHAT, **more):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more}


def chat(text, **more):
    messages = [{"role": "user", "content": text}]
    return {"model": "toy", "messages": messages, "max_tokens": 12, "seed": 1, **more}


def upload(sdk, lines):
    text = "".join(json.dumps(one) + "\n" for one in lines).encode()
    return sdk.files.create(file=("in.jsonl", text), purpose="batch")


def begin(sdk, lines, endpoint=CHAT, **more):
    return sdk.batches.create(
        input_file_id=upload(sdk, lines).id,
        endpoint=endpoint,
        completion_window="24h",
        **more,
    )


def ended(sdk, batch, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.02)
        batch = sdk.batches.retrieve(batch.id)
    return batch


def lines_of(sdk, file_id):
    return [json.loads(text) for text in sdk.files.content(file_id).text.splitlines()]


def without_names(body):
    """An answer but for what every answer has anew."""
    body["usage"].pop("prompt_tokens_details")
    return {name: value for name, value in body.items() if name not in ("id", "created")}


@pytest.mark.parametrize(
    ("endpoint", "bodies"),
    [
        (CHAT, [chat(f"{i} stories", n=1 + i % 2, stream=i % 3 == 0) for i in range(20)]),
        (
            "/v1/completions",
            [{"prompt": f"one {i}", "max_tokens": 9, "seed": i, "logprobs": 2} for i in range(8)],
        ),
        ("/v1/responses", [{"input": text, "max_output_tokens": 9} for text in "12"]),
        ("/v1/classify", [{"input": text, "labels": ["yes", "no way"]} for text in "123"]),
        ("/v1/score", [{"prompt": "a", "continuations": [" b", " c d"]}]),
    ],
)
def test_a_batch_gives_what_asking_one_by_one_gives(server, sdk, endpoint, bodies):
    named = [(f"n°{i}\n", body) for i, body in enumerate(bodies)]
    batch = begin(
        sdk, [line(i, body, endpoint) for i, body in named], endpoint, metadata={"a": "b"}
    )
    assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"a": "b"})
    done = ended(sdk, batch)
    assert (done.status, done.error_file_id, done.errors) == ("completed", None, None)
    assert done.request_counts.to_dict() == {
        "total": len(bodies),
        "completed": len(bodies),
        "failed": 0,
    }
    times = (done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at)
    assert list(times) == sorted(times)
    assert done.expires_at - done.created_at == 86400
    file = sdk.files.retrieve(done.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    found = {said["custom_id"]: said for said in lines_of(sdk, file.id)}
    assert len(found) == len(bodies)
    for custom_id, body in named:
        said = found[custom_id]
        assert said["error"] is None
        assert said["id"].startswith("batch_req_")
        assert said["response"]["status_code"] == 200
        if endpoint == "/v1/responses":
            continue  # each draws with a seed of its own
        alone = {name: value for name, value in body.items() if name != "stream"}
        answer = server.client.post(
            endpoint, json=alone, headers={"authorization": f"Bearer {KEYS[0]}"}
        )
        assert without_names(said["response"]["body"]) == without_names(answer.json())


def test_requests_that_fail_stand_in_the_file_of_errors(sdk):
    bad = [chat("x", temperature=-1), chat("x", model="another"), chat("word " * 900)]
    lines = [line("good", chat("x")), *(line(f"bad {i}", body) for i, body in enumerate(bad))]
    done = ended(sdk, begin(sdk, lines))
    assert done.status == "completed"
    assert (done.request_counts.completed, done.request_counts.failed) == (1, 3)
    assert [said["custom_id"] for said in lines_of(sdk, done.output_file_id)] == ["good"]
    said = {one["custom_id"]: one["response"] for one in lines_of(sdk, done.error_file_id)}
    assert [said[f"bad {i}"]["status_code"] for i in range(3)] == [400, 404, 400]
    assert said["bad 0"]["body"]["error"]["param"] == "temperature"
    assert said["bad 2"]["body"]["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("text", "code", "at", "said"),
    [
        ("", "empty_file", None, "no requests"),
        ("\n \n", "empty_file", None, "no requests"),
        ("not json\n", "invalid_json_line", 1, "not JSON"),
        ("[1]\n", "invalid_json_line", 1, "not a JSON object"),
        ("[" * 100_000, "invalid_json_line", 1, "JSON"),
        (json.dumps(line("a", {})) + '\n{"custom_id":', "invalid_json_line", 2, "not JSON"),
        (json.dumps(line("", {})), "invalid_custom_id", 1, "1 to 512"),
        (json.dumps(line(7, {})), "invalid_custom_id", 1, "7"),
        (2 * (json.dumps(line("a", {})) + "\n"), "duplicate_custom_id", 2, "earlier"),
        (json.dumps(line("a", {}, method="GET")), "invalid_method", 1, "POST"),
        (json.dumps(line("a", {}, "/v1/embeddings")), "invalid_url", 1, f"accepted: {CHAT}"),
        (json.dumps(line("a", {}, "/metrics")), "invalid_url", 1, "/metrics"),
        (json.dumps(line("a", "text")), "invalid_body", 1, "an object"),
        ("x" * (9 << 20), "line_too_long", 1, "8388608 bytes"),
    ],
)
def test_what_is_no_list_of_requests_fails_and_says_why(sdk, text, code, at, said):
    file = sdk.files.create(file=text.encode(), purpose="batch")
    batch = sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    done = ended(sdk, batch)
    assert (done.status, done.output_file_id) == ("failed", None)
    fault = done.errors.data[0]
    assert (fault.code, fault.line) == (code, at)
    assert said in fault.message
    sdk.files.delete(file.id)


def test_a_batch_that_cannot_be_is_refused(server, sdk):
    file = upload(sdk, [line("a", chat("x"))])
    other = sdk.files.create(file=b"x", purpose="user_data")
    good = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    for wrong, said in (
        ({"input_file_id": "file-none"}, "No such File object: file-none"),
        ({"input_file_id": other.id}, "purpose is user_data; accepted: batch"),
        ({"endpoint": "/v1/files"}, "accepted: /v1/chat/completions"),
        ({"completion_window": "1 year"}, "accepted: 24h"),
        ({"metadata": {"k" * 65: ""}}, "64"),
        ({"metadata": {str(i): "" for i in range(17)}}, "16"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "3600"),
    ):
        with pytest.raises(openai.APIStatusError, match=said):
            sdk.batches.create(**good | wrong)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS[1], max_retries=0) as another:
        with pytest.raises(openai.NotFoundError):
            another.batches.create(**good)
        batch = sdk.batches.create(**good)
        for call in (another.batches.retrieve, another.batches.cancel):
            with pytest.raises(openai.NotFoundError, match="No batch found"):
                call(batch.id)
        assert list(another.batches.list()) == []
    assert ended(sdk, batch).status == "completed"
    with pytest.raises(openai.BadRequestError, match="status 'completed'"):
        sdk.batches.cancel(batch.id)


def test_lists_have_pages(sdk):
    made = [begin(sdk, [line("a", chat("x"))]) for _ in range(3)]
    listed = sdk.batches.list(limit=2)
    assert [batch.id for batch in listed.data] == [made[2].id, made[1].id]
    assert listed.has_more
    assert next(iter(sdk.batches.list(after=made[1].id))).id == made[0].id
    for batch in made:
        ended(sdk, batch)


def test_a_file_that_is_deleted_meanwhile_is_no_loss(server, sdk):
    server.runner.gate.clear()
    file = upload(sdk, [line(str(i), chat(f"{i}")) for i in range(12)])
    batch = sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    sdk.files.delete(file.id)
    server.runner.gate.set()
    done = ended(sdk, batch)
    assert (done.status, done.request_counts.completed) == ("completed", 12)


def test_a_cancelled_batch_keeps_what_it_has(server, sdk):
    server.runner.delay_s = 0.01
    batch = begin(sdk, [line(str(i), chat(f"{i}")) for i in range(300)])
    server.wait_until(lambda: sdk.batches.retrieve(batch.id).request_counts.completed >= 6)
    assert sdk.batches.cancel(batch.id).status == "cancelling"
    done = ended(sdk, batch)
    server.runner.delay_s = 0
    assert done.status == "cancelled"
    assert 6 <= done.request_counts.completed < 300
    ids = [said["custom_id"] for said in lines_of(sdk, done.output_file_id)]
    assert len(ids) == len({*ids}) == done.request_counts.completed
    server.wait_until(lambda: server.state.engine.unfinished == 0)
    assert not list(server.state.batches.folder.iterdir())


def test_a_batch_that_expires_says_which_requests_have_no_answer(server, sdk, monkeypatch):
    server.runner.delay_s = 0.01
    batch = begin(sdk, [line(str(i), chat(f"{i}")) for i in range(300)])
    server.wait_until(lambda: sdk.batches.retrieve(batch.id).request_counts.completed >= 6)
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + 86400)
    done = ended(sdk, batch)
    server.runner.delay_s = 0
    assert done.status == "expired"
    good = {said["custom_id"] for said in lines_of(sdk, done.output_file_id)}
    late = [said["custom_id"] for said in lines_of(sdk, done.error_file_id)]
    assert lines_of(sdk, done.error_file_id)[0]["error"]["code"] == "batch_expired"
    assert sorted([*good, *late], key=int) == [str(i) for i in range(300)]
    assert (done.request_counts.completed, done.request_counts.failed) == (len(good), len(late))


def test_a_clock_that_jumps_back_is_no_loss(server, sdk, monkeypatch):
    server.runner.delay_s = 0.01
    batch = begin(sdk, [line(str(i), chat(f"{i}")) for i in range(60)])
    server.wait_until(lambda: sdk.batches.retrieve(batch.id).request_counts.completed >= 6)
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() - 86400)
    done = ended(sdk, batch)
    server.runner.delay_s = 0
    assert (done.status, done.request_counts.completed) == ("completed", 60)
    ids = [said["custom_id"] for said in lines_of(sdk, done.output_file_id)]
    assert sorted(ids, key=int) == [str(i) for i in range(60)]


def test_a_key_has_only_so_many_unfinished_batches(server, sdk, monkeypatch):
    monkeypatch.setattr(table, "MAX_OPEN", 8)
    server.runner.gate.clear()
    file = upload(sdk, [line("a", chat("x"))])
    ask = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    made = [sdk.batches.create(**ask) for _ in range(8)]
    with pytest.raises(openai.PermissionDeniedError, match="unfinished") as refused:
        sdk.batches.create(**ask)
    assert refused.value.code == "quota_exceeded"
    server.runner.gate.set()
    for batch in made:
        assert ended(sdk, batch).status == "completed"


def test_a_server_that_starts_again_goes_on(tmp_path):
    url = "/v1/completions"
    lines = [line(f"{i}", {"prompt": f"{i}", "max_tokens": 12}, url) for i in range(60)]
    batch, counts = None, []
    while batch is None or batch.status != "completed":
        with (
            keeping_server(tmp_path, api_keys=KEYS, batch_rules=BatchRules(6)) as server,
            openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS[0], max_retries=0) as sdk,
        ):
            server.runner.delay_s = 0.1
            batch = begin(sdk, lines, url) if batch is None else sdk.batches.retrieve(batch.id)
            counts.append(batch.request_counts.completed)
            until = min(counts[-1] + 20, 60)
            while batch.request_counts.completed < until:
                time.sleep(0.05)
                batch = sdk.batches.retrieve(batch.id)
    assert 0 < counts[1] < 60
    assert counts == sorted(counts)
    with keeping_server(tmp_path, api_keys=KEYS) as server:
        headers = {"authorization": f"Bearer {KEYS[0]}"}
        text = server.client.get(f"/v1/files/{batch.output_file_id}/content", headers=headers).text
    assert sorted(int(json.loads(one)["custom_id"]) for one in text.splitlines()) == [*range(60)]


def test_a_batch_whose_key_is_gone_fails(tmp_path):
    with keeping_server(tmp_path, api_keys=KEYS) as server:
        server.runner.gate.clear()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS[0]) as sdk:
            batch = begin(sdk, [line("a", chat("x"))])
        server.wait_until(lambda: server.state.engine.unfinished)
        server.state.batches.stop()
        server.runner.gate.set()
    with keeping_server(tmp_path, api_keys=KEYS[1:]) as server:
        server.wait_until(lambda: server.state.batches.table.get(batch.id)["status"] == "failed")
        assert "invalid_api_key" in server.state.batches.table.get(batch.id)["errors"]


def test_batches_run_at_their_hours_only(tmp_path):
    hour = datetime.now().hour
    rules = BatchRules(6, Hours([f"{(hour + 12) % 24}-{(hour + 13) % 24}"]))
    with (
        keeping_server(tmp_path, batch_rules=rules) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as sdk,
    ):
        batch = begin(sdk, [line("a", chat("x"))])
        server.wait_until(lambda: sdk.batches.retrieve(batch.id).status == "in_progress")
        time.sleep(0.3)
        assert server.state.engine.unfinished == 0
        server.state.batches._rules = replace(rules, hours=Hours())
        assert ended(sdk, batch).status == "completed"
