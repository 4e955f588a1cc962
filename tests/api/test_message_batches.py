"""/v1/messages/batches, as Anthropic's reference has it; its package is tried in tests/clients."""

import json

import pytest

from kept import KEYS, keeping_server
from lanewise.api.batches.runner import BatchRules

BATCHES = "/v1/messages/batches"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with keeping_server(folder, api_keys=KEYS, batch_rules=BatchRules(6)) as running:
        running.client.headers["x-api-key"] = KEYS[0]
        yield running


@pytest.fixture
def client(server):
    return server.client


def message(text, **more):
    messages = [{"role": "user", "content": text}]
    return {"model": "toy", "max_tokens": 12, "messages": messages, "temperature": 0, **more}


def create(client, *params):
    requests = [{"custom_id": f"r{i}", "params": one} for i, one in enumerate(params)]
    answer = client.post(BATCHES, json={"requests": requests})
    assert answer.status_code == 200, answer.text
    return answer.json()


def ended(server, batch):
    def look():
        found.update(server.client.get(f"{BATCHES}/{batch['id']}").json())
        return found["processing_status"] == "ended"

    found = {}
    server.wait_until(look)
    return found


def results(client, batch):
    answer = client.get(batch["results_url"])
    assert answer.headers["content-type"] == "application/x-jsonl"
    lines = map(json.loads, answer.text.splitlines())
    return {line["custom_id"]: line["result"] for line in lines}


def test_results_are_what_messages_gives(server, client):
    params = [message(f"{i} stories", stream=i == 1) for i in range(5)]
    batch = create(client, *params, message("x", temperature=-1), message("x", model="none"))
    assert batch["type"] == "message_batch"
    assert batch["request_counts"] == {
        "processing": 7,
        "succeeded": 0,
        "errored": 0,
        "canceled": 0,
        "expired": 0,
    }
    done = ended(server, batch)
    assert done["request_counts"] == batch["request_counts"] | {
        "processing": 0,
        "succeeded": 5,
        "errored": 2,
    }
    said = results(client, done)
    for i, one in enumerate(params):
        alone = client.post("/v1/messages", json=one | {"stream": False}).json()
        assert said[f"r{i}"]["type"] == "succeeded"
        assert said[f"r{i}"]["message"]["content"] == alone["content"]
        assert said[f"r{i}"]["message"]["usage"]["output_tokens"] == 12
    for name, kind in (("r5", "invalid_request_error"), ("r6", "not_found_error")):
        assert said[name]["type"] == "errored"
        assert said[name]["error"]["type"] == "error"
        assert said[name]["error"]["error"]["type"] == kind


def test_a_cancelled_batch_tells_every_request(server, client):
    server.runner.gate.clear()
    batch = create(client, *(message(f"{i}") for i in range(20)))
    assert client.get(f"{BATCHES}/{batch['id']}/results").status_code == 400
    assert client.delete(f"{BATCHES}/{batch['id']}").status_code == 400
    cancelling = client.post(f"{BATCHES}/{batch['id']}/cancel").json()
    assert cancelling["processing_status"] == "canceling"
    assert cancelling["cancel_initiated_at"]
    server.runner.gate.set()
    done = ended(server, batch)
    said = results(client, done)
    assert len(said) == 20
    counts = done["request_counts"]
    assert counts["canceled"] == sum(one == {"type": "canceled"} for one in said.values()) >= 14
    assert counts["succeeded"] + counts["canceled"] == 20
    deleted = client.delete(f"{BATCHES}/{batch['id']}").json()
    assert deleted == {"id": batch["id"], "type": "message_batch_deleted"}
    gone = client.get(f"{BATCHES}/{batch['id']}")
    assert (gone.status_code, gone.json()["error"]["type"]) == (404, "not_found_error")


def test_lists_have_pages_both_ways(server, client):
    made = [create(client, message("x"))["id"] for _ in range(3)]

    def page(**query):
        found = client.get(BATCHES, params=query).json()
        return [one["id"] for one in found["data"]], found["has_more"]

    assert page(limit=2) == ([made[2], made[1]], True)
    assert page(limit=1, after_id=made[2]) == ([made[1]], True)
    assert page(limit=1, before_id=made[0]) == ([made[1]], True)
    assert page(before_id=made[1]) == ([made[2]], False)
    assert client.get(BATCHES, headers={"x-api-key": KEYS[1]}).json()["data"] == []
    for name in made:
        ended(server, {"id": name})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "requests is required"),
        ({"requests": []}, "requests"),
        ({"requests": [{"custom_id": "a b", "params": {}}]}, "custom_id"),
        ({"requests": [{"custom_id": "a", "params": []}]}, "params"),
        ({"requests": 2 * [{"custom_id": "a", "params": {}}]}, "earlier request"),
    ],
)
def test_what_is_no_batch_is_refused(server, client, body, said):
    answer = client.post(BATCHES, json=body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    assert not list(server.state.files.folder.glob("*.half"))
