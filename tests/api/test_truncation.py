"""``truncation`` of responses: conversations that are too long lose their oldest messages."""

import openai
import pytest

RESPONSES = "/v1/responses"
WARNING = "x-lanewise-warning"


def said(role, text):
    return {"role": role, "content": text}


def answered(client, items, **more):
    answer = client.post(RESPONSES, json={"input": items, "max_output_tokens": 20, **more})
    return answer.status_code, answer.json(), answer.headers


def n_tokens(client, items, **more):
    status, answer, _ = answered(client, items, **more)
    assert status == 200, answer
    return answer["usage"]["input_tokens"]


TURNS = [
    said(role, f"{role} {i} " + "x" * 40) for i in range(9) for role in ("user", "assistant")
] + [said("user", "and now?")]


def test_the_oldest_turns_go_and_no_more_of_them_than_must(client):
    status, answer, _ = answered(client, TURNS, instructions="Be kind.")
    assert status == 400
    assert answer["error"]["code"] == "context_length_exceeded"
    status, answer, headers = answered(client, TURNS, instructions="Be kind.", truncation="auto")
    assert status == 200
    assert answer["truncation"] == "auto"
    used = answer["usage"]["input_tokens"]
    kept = next(
        turns
        for turns in (TURNS[i:] for i in range(2, len(TURNS), 2))
        if answered(client, turns, instructions="Be kind.")[0] == 200
    )
    assert used == n_tokens(client, kept, instructions="Be kind.") <= 512 - 20
    assert (
        headers[WARNING] == f"input: without the {len(TURNS) - len(kept)} oldest messages it fits"
    )
    # With more room for the answer, there is less for the conversation.
    longer = {"max_output_tokens": 200, "instructions": "Be kind."}
    assert n_tokens(client, TURNS, truncation="auto", **longer) <= 312
    free = client.post(RESPONSES, json={"input": TURNS, "truncation": "auto"})
    assert free.json()["usage"]["input_tokens"] <= 512 - 512 // 8


def test_what_fits_is_as_it_is(client):
    assert n_tokens(client, TURNS[-3:], truncation="auto") == n_tokens(client, TURNS[-3:])
    _, _, headers = answered(client, TURNS[-3:], truncation="auto")
    assert WARNING not in headers


def test_a_turn_of_many_calls_loses_the_oldest_of_them(client, template):
    template(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}</s>{% endfor %}"
    )
    items = [said("system", "Be kind."), said("user", "look around")]
    for i in range(12):
        items.append({"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": "{}"})
        items.append({"type": "function_call_output", "call_id": f"c{i}", "output": "y" * 40})
    assert answered(client, items)[0] == 400
    used = n_tokens(client, items, truncation="auto")
    kept = next(
        found
        for found in (items[:2] + items[i:] for i in range(4, len(items), 2))
        if answered(client, found)[0] == 200
    )
    assert used == n_tokens(client, kept)


def test_a_last_message_that_is_too_long_is_refused(client, server):
    long = [said("user", "a"), said("assistant", "b"), said("user", "z" * 600)]
    status, answer, _ = answered(client, long, truncation="auto")
    assert status == 400
    assert answer["error"]["message"].startswith("This model's maximum context length is 512")
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as sdk:
        made = sdk.responses.create(model="toy", input=TURNS, truncation="auto")
        assert made.truncation == "auto"
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            sdk.responses.create(model="toy", input=TURNS)
