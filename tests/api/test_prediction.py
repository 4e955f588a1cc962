"""Predicted outputs: what a client expects makes an answer faster, and never another."""

from dataclasses import replace

import openai
import pytest

from lanewise.engine.guessing.row_costs import RowCosts
from toy_server import CONFIG, toy_server

CHAT = "/v1/chat/completions"
ASK = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "seed": 3, "max_tokens": 60}


@pytest.fixture
def server(monkeypatch):
    """Every step takes as long as any other, so that every guess is worth its row."""
    monkeypatch.setattr(RowCosts, "are_known", True)
    monkeypatch.setattr(RowCosts, "seconds", lambda self, rows: 1.0)
    with toy_server(replace(CONFIG, max_draft=6)) as running:
        yield running


def usage_of(answer):
    details = answer.usage.completion_tokens_details
    return details.accepted_prediction_tokens, details.rejected_prediction_tokens


def test_predictions_are_accepted_as_far_as_they_come_true(server, tokenizer):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as sdk:
        create = sdk.chat.completions.create
        # Letters that no token has with others: texts are spelled as they are drawn.
        only = {"allowed_token_ids": list(b"abcdfghjklmopqsuvwxyz")}
        ask = ASK | {"extra_body": only}
        plain = create(**ask)
        said = plain.choices[0].message.content
        assert plain.usage.completion_tokens_details is None
        guessed = server.metric("vllm:spec_decode_num_accepted_tokens_total")

        def predicted(content, **more):
            return create(**ask, prediction={"type": "content", "content": content}, **more)

        whole = predicted(said)
        assert whole.choices[0].message == plain.choices[0].message
        n_said = len(tokenizer.encode_inside(said))
        accepted, rejected = usage_of(whole)
        assert (accepted, rejected) == (n_said, 0)
        gained = server.metric("vllm:spec_decode_num_accepted_tokens_total") - guessed
        assert gained > 30

        parts = [{"type": "text", "text": text} for text in (said[:30], "QQQ", said[33:])]
        edited = predicted(parts)
        assert edited.choices[0].message == plain.choices[0].message
        accepted, rejected = usage_of(edited)
        assert 40 <= accepted <= 57
        assert rejected >= 3
        assert usage_of(predicted("0" * 40)) == (0, 40)

        events = list(predicted(said, stream=True, stream_options={"include_usage": True}))
        assert usage_of(events[-1]) == (n_said, 0)
        text = "".join(event.choices[0].delta.content or "" for event in events[:-1])
        assert text == said
        assert usage_of(predicted(said, n=2))[0] >= n_said


def test_a_prediction_that_is_none(server):
    for wrong, param in (
        ({"type": "text", "content": "a"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": "a" * 200_000}, "prediction"),
    ):
        answer = server.client.post(CHAT, json=ASK | {"prediction": wrong})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
    empty = server.client.post(CHAT, json=ASK | {"prediction": {"type": "content", "content": ""}})
    assert empty.json()["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }
