"""Requests that load adapters, where the server allows it and where it does not."""

import pytest

from lanewise.engine.adapters import AdapterError, Adapters
from toy import ToyAdapter
from toy_server import toy_server

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


def load(path: str) -> ToyAdapter:
    if path != "/there":
        raise AdapterError(f"{path}: adapter_config.json is missing")
    return ToyAdapter(7)


@pytest.fixture(scope="module")
def fixed():
    """A server with one adapter, and no other ever."""
    adapters = Adapters(load, 1)
    adapters.load("tuned", "/there")
    with toy_server(adapters=adapters) as running:
        yield running


def error(answer, status):
    assert answer.status_code == status
    return answer.json()["error"]


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
def test_no_request_changes_what_the_operator_chose(server, fixed, path):
    for one in (server, fixed):
        body = {"lora_name": "tuned", "lora_path": "/there"}
        told = error(one.client.post(path, json=body), 403)
        assert told["code"] == "forbidden"
        assert "--allow-runtime-lora" in told["message"]


def test_what_is_wrong_with_a_request_is_named():
    with toy_server(adapters=Adapters(load, 1), runtime_adapters=True) as running:
        post = running.client.post
        told = error(post(LOAD, json={"lora_name": "", "lora_path": "/there"}), 400)
        assert told["param"] == "lora_name"
        told = error(post(LOAD, json={"lora_name": "x", "lora_path": 5}), 400)
        assert told["param"] == "lora_path"
        told = error(post(LOAD, json={"lora_name": "x", "lora_path": "/gone"}), 400)
        assert told["message"] == "/gone: adapter_config.json is missing"
        told = error(post(LOAD, json={"lora_name": "toy", "lora_path": "/there"}), 400)
        assert told["param"] == "lora_name"
        assert error(post(UNLOAD, json={"lora_name": "x"}), 404)["code"] == "model_not_found"
        assert post(LOAD, json={"lora_name": "x", "lora_path": "/there"}).status_code == 200


def test_a_model_that_is_no_adapter_is_not_here(fixed):
    for path in ("/v1/completions", "/tokenize"):
        told = error(fixed.client.post(path, json={"model": "other", "prompt": "a"}), 404)
        assert told["message"] == "the model 'other' is not here; this server has 'toy', 'tuned'"
    assert error(fixed.client.get("/v1/models/other"), 404)["param"] == "model"
    assert fixed.client.post("/tokenize", json={"model": "tuned", "prompt": "a"}).status_code == 200


def test_streams_carry_the_adapters_name(fixed):
    body = {"model": "tuned", "prompt": "abc", "max_tokens": 2, "stream": True}
    assert '"model":"tuned"' in fixed.client.post("/v1/completions", json=body).text
    assert '"model":"toy"' in fixed.client.post("/v1/completions", json=body | {"model": ""}).text
