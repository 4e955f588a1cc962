"""Paths as clients write them, other servers' endpoints, and what is said of all others."""

import httpx
import openai
import pytest

from lanewise.api.endpoints.absent import ABSENT, absent_at
from lanewise.api.endpoints.table import ENDPOINTS
from lanewise.api.shared.state import ModelCard, Phase
from toy_server import toy_server

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "seed": 1}
PROMPT = {"prompt": "abc", "max_tokens": 4, "seed": 1}


def error_of(answer, status):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", CHAT),
        ("/completions", PROMPT),
        ("/messages", {"model": "toy", "messages": CHAT["messages"], "max_tokens": 4}),
        ("/messages/count_tokens", {"model": "toy", "messages": CHAT["messages"]}),
        ("/responses", {"input": "hi", "max_output_tokens": 4}),
        ("/models", None),
        ("/models/toy", None),
        ("/v1/health", None),
    ],
)
def test_paths_may_leave_out_v1(client, path, body):
    def ask(path):
        answer = client.get(path) if body is None else client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    full = path if path.startswith("/v1") else f"/v1{path}"
    short = path.removeprefix("/v1")
    assert ask(short).keys() == ask(full).keys() == ask(f"{short}/").keys()


def test_sdks_whose_base_url_has_no_v1_work(server):
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as sdk:
        assert sdk.chat.completions.create(model="toy", **CHAT).choices[0].finish_reason
        assert sdk.completions.create(model="toy", **PROMPT).object == "text_completion"
        assert [model.id for model in sdk.models.list()] == ["toy"]
        kept = sdk.responses.create(model="toy", input="hi", max_output_tokens=4)
        assert sdk.responses.retrieve(kept.id).id == kept.id


def test_a_short_path_is_the_same_endpoint_to_keys_and_metrics():
    with toy_server(api_keys=("key",)) as server:
        assert server.client.post("/chat/completions", json=CHAT).status_code == 401
        assert server.client.get("/models/").status_code == 401
        key = {"authorization": "Bearer key"}
        assert server.client.post("/chat/completions", json=CHAT, headers=key).status_code == 200
        assert server.client.get("/v1/health").status_code == 200
        text = server.client.get("/metrics").text
        assert 'handler="/v1/chat/completions",method="POST",status="200"' in text
        assert 'handler="/chat' not in text


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ping_is_readiness_without_a_key(method):
    with toy_server(api_keys=("key",)) as server:
        answer = server.client.request(method, "/ping")
        assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
        server.state.phase = Phase.DRAINING
        assert server.client.request(method, "/ping").status_code == 503


@pytest.mark.parametrize("stream", [False, True])
def test_invocations_are_chats_or_completions_by_what_the_body_has(client, stream):
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", PROMPT)):
        body = {**body, "stream": stream, "logprobs": None}
        one, other = (client.post(asked, json=body) for asked in (path, "/invocations"))
        assert one.headers["content-type"] == other.headers["content-type"]
        if not stream:
            assert one.json()["choices"] == other.json()["choices"]
            assert one.json()["object"] == other.json()["object"]
        else:
            assert one.text.count("data: ") == other.text.count("data: ") > 2
    assert error_of(client.post("/invocations", json={}), 400)["param"] == "prompt"
    assert error_of(client.post("/invocations", json=[]), 400)
    assert error_of(client.post("/invocations", json={"messages": 1}), 400)["param"] == "messages"


def test_what_the_model_cannot_do_says_what_it_is_and_what_to_ask():
    card = ModelCard("llama", 134_500_000, 1 << 20)
    with toy_server(card=card) as server:
        for path in ("/v1/embeddings", "/embeddings", "/v1/rerank", "/rerank", "/pooling"):
            answer = server.client.post(path, json={"input": "a"})
            error = error_of(answer, 501)
            assert error["code"] == "not_implemented"
            assert "'toy' (llama, 134.5M weights) writes text" in error["message"]
            assert "accepted: " in error["message"]
            assert answer.headers["x-should-retry"] == "false"
        for path in ("/api/embed", "/api/embeddings"):
            answer = server.client.post(path, json={"model": "toy", "input": "a"})
            assert answer.status_code == 501
            assert "'toy' (llama" in answer.json()["error"]
        with (
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as sdk,
            pytest.raises(openai.InternalServerError, match="gives no vectors") as found,
        ):
            sdk.embeddings.create(model="toy", input="a")
        assert found.value.status_code == 501
    assert not [e for e in ENDPOINTS if "{model}" in (e.answer.__doc__ or "")]


@pytest.mark.parametrize(
    "path", [path for one in ABSENT if not one.has(None) for path in one.paths]
)
def test_all_below_and_every_method_say_the_same(client, path):
    why = absent_at(path).why.removeprefix("{model}")
    for method, asked in (("POST", path), ("GET", path), ("DELETE", f"{path}/x/y")):
        error = error_of(client.request(method, asked), 501)
        assert why in error["message"]
        assert error["message"].startswith(f"{asked} is not supported: ")
    assert client.get(f"{path}x").status_code == 404


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("//v1/models", "/v1/models"),
        ("/v1//models", "/v1/models"),
        ("/V1/Models", "/v1/models"),
        ("/openai/deployments/gpt/chat/completions", "/v1/chat/completions"),
        ("/v1/message", "/v1/messages"),
        ("/v1/message/count_tokens", "/v1/messages/count_tokens"),
        ("/healthz", "/health"),
        ("/tokenise", "/tokenize"),
        ("/v1/load_lora_adaptor", "/v1/load_lora_adapter"),
        ("/none/of/these", None),
        ("/" + "a" * 5000, None),
    ],
)
def test_a_path_that_is_none_is_told_which_may_be_meant(server, path, meant):
    # Whole: a path that begins with two slashes is a host to httpx otherwise.
    error = error_of(httpx.get(httpx.URL(server.url).copy_with(raw_path=path.encode())), 404)
    assert error["code"] == "not_found"
    hint = f"; did you mean {meant}?" if meant else "; /docs says what there is"
    assert error["message"].endswith(hint)
    assert len(error["message"]) < 300


def test_another_dialect_says_it_in_its_own_form(client):
    answer = client.post("/api/chats", json={})
    assert answer.status_code == 404
    assert answer.json() == {"error": "there is nothing at /api/chats; did you mean /api/chat?"}


def test_a_wrong_method_is_told_which_there_are(client):
    for method, path, allowed in (
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/responses/resp_1", "DELETE, GET"),
        ("POST", "/docs", "GET"),
    ):
        answer = client.request(method, path)
        error = error_of(answer, 405)
        assert error["code"] == "method_not_allowed"
        assert error["message"].endswith(f"; accepted: {allowed}")
        assert answer.headers["allow"] == allowed


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/page/docs.js"])
def test_pages_with_a_slash_at_the_end_send_to_those_without(client, path):
    """Else what they ask for would be looked for below them."""
    answer = client.get(f"{path}/", headers={"accept": "text/html"})
    assert answer.status_code == 308
    assert (
        str(answer.url.join(answer.headers["location"])) == str(client.base_url).rstrip("/") + path
    )
    assert client.get(f"{path}/", follow_redirects=True).text == client.get(path).text
