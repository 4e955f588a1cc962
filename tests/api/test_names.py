"""A model of several names: each is listed and accepted, and answers carry the one asked for."""

from contextlib import contextmanager

import openai
import pytest

from lanewise.engine.base.adapters import Adapters
from toy import ToyAdapter
from toy_server import toy_server

NAMES = ("toy", "org/toy-large", "gpt-4o")
HELLO = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
PROMPT = {"prompt": "abc", "max_tokens": 2, "seed": 1}


@contextmanager
def serving_names(**options):
    with toy_server(names=NAMES, **options) as running:
        yield running


@pytest.fixture(scope="module")
def named():
    adapters = Adapters(lambda _: ToyAdapter(7), 1)
    adapters.load("tuned", "/there")
    with serving_names(adapters=adapters) as running:
        yield running


def test_all_names_are_listed_the_first_first_and_adapters_after_them(named):
    listed = named.client.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == [*NAMES, "tuned"]
    assert [model["root"] for model in listed] == ["toy", "toy", "toy", "/there"]
    assert [model["parent"] for model in listed] == [None, None, None, "toy"]
    for model in listed:
        assert named.client.get(f"/v1/models/{model['id']}").json() == model
    tags = named.client.get("/api/tags").json()["models"]
    assert [tag["name"] for tag in tags] == [f"{name}:latest" for name in (*NAMES, "tuned")]


@pytest.mark.parametrize("name", [*NAMES, "gpt-4o:latest"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_answers_carry_the_name_that_was_asked_for(named, name, stream):
    with openai.OpenAI(base_url=f"{named.url}/v1", api_key="x", max_retries=0) as sdk:
        found = [
            sdk.chat.completions.create(model=name, stream=stream, **HELLO),
            sdk.completions.create(model=name, stream=stream, **PROMPT),
        ]
        for answer in found:
            pieces = list(answer) if stream else [answer]
            assert pieces
            assert {piece.model for piece in pieces} == {name}
        if not stream:
            assert sdk.responses.create(model=name, input="hi", max_output_tokens=2).model == name
    if not stream:
        message = named.client.post("/v1/messages", json={"model": name, **HELLO})
        assert message.json()["model"] == name
        answer = named.client.post("/api/chat", json={"model": name, "stream": False, **HELLO})
        assert answer.json()["model"] == name


def test_the_name_changes_nothing_else_and_none_is_the_first(named):
    def ask(**fields):
        answer = named.client.post("/v1/completions", json=PROMPT | fields).json()
        return answer["model"], answer["choices"]

    model, choices = ask()
    assert model == "toy"
    assert [ask(model=name) for name in NAMES] == [(name, choices) for name in NAMES]


def test_any_other_name_is_told_which_there_are(named):
    answer = named.client.post("/v1/completions", json={**PROMPT, "model": "gpt-4"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert all(name in answer.json()["error"]["message"] for name in (*NAMES, "tuned"))


def test_metrics_have_the_first_name(named):
    text = named.client.get("/metrics").text
    assert 'model_name="toy"' in text
    assert "gpt-4o" not in text


def test_no_adapter_takes_one_of_the_names(tmp_path):
    options = {
        "adapters": Adapters(lambda _: ToyAdapter(7), 2),
        "locate_adapter": lambda _: tmp_path,
        "admin_keys": ("admin",),
    }
    with serving_names(**options) as server:
        for name in NAMES:
            answer = server.client.post(
                "/v1/load_lora_adapter",
                json={"lora_name": name, "lora_path": "there"},
                headers={"authorization": "Bearer admin"},
            )
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["param"] == "lora_name"
            assert error["message"].startswith(f"lora_name: {name!r} is a name of the served model")
            assert ", ".join(NAMES) in error["message"]
