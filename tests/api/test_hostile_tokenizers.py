"""A text that the model's tokenizer cannot read is refused in the words of each dialect."""

import json
import logging

import pytest

from hostile_tokenizers import cut_at
from lanewise.api.shared.workers import Workers
from lanewise.text.limited_tokenizer import LimitedTokenizer
from toy_server import toy_server

SLOW = "a" * 28 + "c"
MESSAGES = [{"role": "user", "content": SLOW}]
ASKED = {
    "/v1/completions": {"prompt": SLOW, "max_tokens": 1},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/responses": {"input": SLOW, "max_output_tokens": 16},
    "/api/chat": {"model": "toy", "messages": MESSAGES},
    "/api/generate": {"model": "toy", "prompt": SLOW},
    "/tokenize": {"prompt": SLOW},
}


@pytest.fixture(scope="module")
def server():
    with toy_server(workers=Workers(inline_size=0)) as running:
        tokenizer = running.state.tokenizer
        whole = tokenizer.whole
        described = json.loads(whole.to_str()) | {"pre_tokenizer": cut_at("(a+)+b|x")}
        limited = LimitedTokenizer.of(json.dumps(described), "toy")
        tokenizer._tokenizer = limited
        tokenizer._plain, tokenizer._continuing = map(limited.of_kind, ("plain", "continuing"))
        yield running


@pytest.mark.parametrize("path", ASKED)
def test_it_is_refused_in_one_line(server, path, caplog):
    with caplog.at_level(logging.WARNING, "lanewise"):
        answer = server.client.post(path, json=ASKED[path] | {"model": "toy"})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    said = error if isinstance(error, str) else error["message"]
    assert "the model's tokenizer cannot be used" in said
    assert not [record for record in caplog.records if record.exc_info]
    assert server.client.get("/health/ready").status_code == 200
    again = server.client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1})
    assert again.status_code == 200
