"""Reads what /v1/responses answers as OpenAI's library does, and checks each event on its way."""

import json
import re

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

EVENT = TypeAdapter(ResponseStreamEvent)
PATH = "/v1/responses"
ENDS = {"response.completed", "response.incomplete", "response.failed"}
# What is different in two answers to one question.
OWN = re.compile(r'_[0-9a-f]{24}|"(created_at|completed_at|cached_tokens)": *[0-9]+')
CALL_ID = re.compile(r'"call_id": *"[^"]*"')


def events_of(text):
    """The events of a stream, each as the library's type says it is."""
    made = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert EVENT.validate_python(event).type == event["type"]
        made.append(event)
    assert [event["sequence_number"] for event in made] == list(range(len(made)))
    return made


def replayed(events):
    """The output that all deltas make, each event in its place."""
    output, is_open = [], False
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    for event in events[2:-1]:
        name, number = event["type"].removeprefix("response."), event["output_index"]
        if name == "output_item.added":
            assert not is_open
            assert number == len(output)
            output.append({"item": event["item"], "text": "", "logprobs": []})
            is_open = True
            continue
        assert is_open
        assert number == len(output) - 1
        one = output[-1]
        assert event.get("item_id", one["item"]["id"]) == one["item"]["id"]
        if name.endswith(".delta"):
            assert event["delta"]
            one["text"] += event["delta"]
            one["logprobs"] += event.get("logprobs", [])
        elif name == "content_part.added":
            assert event["part"]["text"] == ""
        elif name == "content_part.done":
            one["part"] = event["part"]
            assert event["part"]["text"] == one["text"]
        elif name == "output_item.done":
            item = event["item"]
            assert item["id"] == one["item"]["id"]
            assert item.get("content", [one.get("part")])[:1] == [one.get("part")]
            one["item"], is_open = item, False
        else:
            assert name.endswith(".done"), name
            (text,) = [event[key] for key in ("text", "arguments", "input") if key in event]
            assert text == one["text"]
            assert event.get("logprobs", one["logprobs"]) == one["logprobs"]
    assert not is_open
    return [one["item"] for one in output]


def comparable(response):
    """An answer without what is its own: ids and times."""
    return CALL_ID.sub("", OWN.sub("", json.dumps(response)))


def ask(client, **body):
    """The whole answer, after a stream that is the same."""
    body = {"input": "hi", "max_output_tokens": 60, "temperature": 1.5, "seed": 1, **body}
    answer = client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    Response.model_validate(whole)
    events = events_of(client.post(PATH, json={**body, "stream": True}).text)
    last = events[-1]
    assert last["type"] in ENDS
    assert replayed(events) == last["response"]["output"]
    assert comparable(last["response"]) == comparable(whole)
    return whole


def text_of(response):
    """What its messages say."""
    parts = [part for item in response["output"] for part in item.get("content") or ()]
    return "".join(part["text"] for part in parts if part["type"] == "output_text")
