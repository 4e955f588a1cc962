"""A longer answer than the context has room for is a wish: it is cut, and the client is told."""

import pytest

from toy_server import toy_server

HELLO = [{"role": "user", "content": "hi"}]
LONG = [{"role": "user", "content": "so long " * 100}]
WARNING = "x-lanewise-warning"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ASKS = [
    (CHAT, {"messages": HELLO}, "max_tokens"),
    (CHAT, {"messages": HELLO}, "max_completion_tokens"),
    (CHAT, {"messages": HELLO, "stream": True}, "n_predict"),
    ("/v1/completions", {"prompt": "abc"}, "max_tokens"),
    ("/v1/completions", {"prompt": "abc"}, "max_new_tokens"),
    (RESPONSES, {"input": "hi"}, "max_output_tokens"),
    (RESPONSES, {"input": "hi", "truncation": "auto"}, "max_output_tokens"),
    ("/v1/responses/compact", {"input": "hi"}, "max_output_tokens"),
    (MESSAGES, {"model": "toy", "messages": HELLO}, "max_tokens"),
    ("/api/chat", {"messages": HELLO, "stream": False}, "options.num_predict"),
    ("/api/generate", {"prompt": "abc", "stream": False}, "options.num_predict"),
    ("/completion", {"prompt": "abc"}, "n_predict"),
    ("/completion", {"prompt": "abc"}, "max_tokens"),
    ("/infill", {"input_prefix": "a", "input_suffix": "b"}, "n_predict"),
]


def with_length(body, field, value):
    if field.startswith("options."):
        return body | {"options": {field.removeprefix("options."): value}}
    return body | {field: value}


@pytest.fixture(scope="module")
def server():
    with toy_server(more_special=("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")) as running:
        yield running


@pytest.mark.parametrize(("path", "body", "field"), ASKS)
def test_an_answer_has_what_room_there_is(client, path, body, field):
    answer = client.post(path, json=with_length(body, field, 32_000))
    assert answer.status_code == 200, answer.text
    (told,) = answer.headers.get_list(WARNING)
    begin = f"{field}: 32000 is more than the context has room for after the prompt, which is "
    assert told.startswith(begin)
    left = int(told.removeprefix(begin))
    assert 0 < left < 512
    enough = client.post(path, json=with_length(body, field, left))
    assert WARNING not in enough.headers


def test_what_is_left_is_what_is_drawn(client):
    body = {"prompt": "abc", "max_tokens": 600, "ignore_eos": True}
    made = client.post("/v1/completions", json=body).json()
    assert made["usage"]["total_tokens"] == 512
    assert made["choices"][0]["finish_reason"] == "length"


def test_each_prompt_has_its_own_room(client):
    short, long = "a", "b" * 400
    body = {"max_tokens": 500, "ignore_eos": True, "seed": 5, "return_token_ids": True}
    both = client.post("/v1/completions", json=body | {"prompt": [short, long]}).json()["choices"]
    for prompt, found in zip((short, long), both, strict=True):
        (alone,) = client.post("/v1/completions", json=body | {"prompt": prompt}).json()["choices"]
        assert found["token_ids"] == alone["token_ids"]
    assert len(both[0]["token_ids"]) == 500
    assert len(both[1]["token_ids"]) < 112


def test_a_length_that_was_not_asked_for_is_not_told(client):
    answer = client.post("/v1/completions", json={"prompt": "b" * 505})
    assert answer.status_code == 200
    assert WARNING not in answer.headers


REFUSES = [one for one in ASKS if one[0] != "/v1/responses/compact"]  # drops the oldest


@pytest.mark.parametrize(("path", "body", "field"), REFUSES)
def test_a_prompt_that_does_not_fit_is_an_error(client, path, body, field):
    text = LONG[0]["content"]
    long = {"messages": LONG, "input": LONG, "prompt": text, "input_prefix": text}
    body = {name: long.get(name, value) for name, value in body.items()}
    if path == "/api/chat":
        body["truncate"] = False
    answer = client.post(path, json=with_length(body, field, 32_000))
    assert answer.status_code == 400
    says = "prompt is too long: " if path == MESSAGES else "maximum context length is 512 tokens"
    assert says in answer.text
    assert "32000" not in answer.text


def test_the_least_length_is_no_wish(client):
    body = {"messages": HELLO, "max_tokens": 600, "min_tokens": 600}
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "min_tokens"


def test_what_cannot_be_does_not_empty_the_prompt(client):
    cut = {"messages": LONG, "max_tokens": 32_000, "truncate_prompt_tokens": -1}
    assert client.post(CHAT, json=cut).json()["usage"]["prompt_tokens"] == 512 - 512 // 8
    turns = [
        {"role": role, "content": f"{i} " + "x" * 40}
        for i in range(9)
        for role in ("user", "assistant")
    ]
    items = [*turns, {"role": "user", "content": "and now?"}]
    for length in (32_000, 505):
        body = {"input": items, "truncation": "auto", "max_output_tokens": length}
        answer = client.post(RESPONSES, json=body)
        assert answer.status_code == 200
        assert "oldest messages" in answer.headers[WARNING]
        assert 300 < answer.json()["usage"]["input_tokens"] <= 512 - 512 // 8
