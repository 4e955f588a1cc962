"""Templates that cannot be used: what tells of a model answers, chats are refused."""

import pytest

from lanewise.text.chat_template import MAX_CHARACTERS, ChatTemplate
from toy_server import toy_server

HELLO = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
UNUSABLE = {
    "none named default": {"a": "x", "b": "y"},
    "too long": {"default": "x" * (MAX_CHARACTERS + 1)},
}


@pytest.fixture(scope="module")
def server():
    with toy_server() as running:
        yield running


@pytest.mark.parametrize("sources", UNUSABLE.values(), ids=UNUSABLE)
def test_what_tells_of_the_model_answers(server, sources):
    server.state.chat_template = ChatTemplate(sources)
    for path, field, shown in (
        ("/tokenizer_info", "chat_template", None),
        ("/props", "chat_template", ""),
    ):
        answer = server.client.get(path)
        assert (answer.status_code, answer.json()[field]) == (200, shown)
    answer = server.client.post("/api/show", json={"model": "toy"})
    assert (answer.status_code, answer.json()["template"]) == (200, "")


@pytest.mark.parametrize(
    ("said", "sources"), [*zip(("default", "characters"), UNUSABLE.values(), strict=True)]
)
def test_chats_are_refused(server, said, sources):
    server.state.chat_template = ChatTemplate(sources)
    for path in ("/v1/chat/completions", "/v1/messages", "/apply-template"):
        answer = server.client.post(path, json=HELLO | {"model": "toy"})
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"]
