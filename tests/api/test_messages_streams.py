"""What a stream of Anthropic's Messages API says event by event is what the whole answer says."""

import json
import random

import pytest

import answer_texts
from lanewise.api.generation import delivery
from scripted_answers import FORMS, NAMES, ids_of, scripted_server
from topics import cases
from toy import Script
from toy_server import toy_server

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "hi"}]
ASK = {"model": "toy", "max_tokens": 20, "messages": HELLO}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 4}}}
WEATHER = {"name": "weather", "description": "of a city", "input_schema": CITY}
N_CONVERSATIONS = cases(6, 20)  # for each template
EMPTY = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
    "tool_use": {"type": "tool_use", "input": {}},
}


@pytest.fixture(scope="module")
def server():
    with scripted_server() as running:
        yield running


def events_of(server, body):
    """What is streamed, each event with the name it has in its data too."""
    events = []
    with server.client.stream("POST", MESSAGES, json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        for text in "".join(response.iter_text()).removesuffix("\n\n").split("\n\n"):
            name, data = text.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            events.append(event)
    return [event for event in events if event["type"] != "ping"]


def assembled(events):
    """The message of a stream whose events come in the one order there is."""
    first, *middle, ending, last = events
    assert first["type"] == "message_start"
    assert last == {"type": "message_stop"}
    message, blocks, is_open, arguments = first["message"], [], False, ""
    assert message["content"] == []
    assert message["stop_reason"] is None
    for event in middle:
        if event["type"] == "content_block_start":
            assert not is_open
            block = event["content_block"]
            kind = EMPTY[block["type"]]
            assert kind.items() <= block.items()
            blocks.append(block)
            is_open, arguments = True, ""
        assert is_open
        assert event["index"] == len(blocks) - 1
        if event["type"] == "content_block_delta":
            match event["delta"]:
                case {"type": "text_delta", "text": text}:
                    assert text
                    blocks[-1]["text"] += text
                case {"type": "thinking_delta", "thinking": text}:
                    assert text
                    assert not blocks[-1]["signature"]
                    blocks[-1]["thinking"] += text
                case {"type": "signature_delta", "signature": text}:
                    blocks[-1]["signature"] += text
                case {"type": "input_json_delta", "partial_json": text}:
                    assert text
                    arguments += text
        if event["type"] == "content_block_stop":
            is_open = False
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = arguments
    assert not is_open
    assert ending["type"] == "message_delta"
    return message | ending["delta"] | {"content": blocks, "usage": ending["usage"]}


def same(whole, streamed):
    """One answer, which was given twice; arguments are compared as far as they are JSON."""
    for block, other in zip(whole["content"], streamed["content"], strict=True):
        if other["type"] == "tool_use":
            assert block.pop("id")
            assert other.pop("id")
            text = other["input"]
            try:
                other["input"] = json.loads(text)
            except ValueError:
                assert streamed["stop_reason"] == "max_tokens"
                assert json.dumps(block["input"])[:-1].rstrip('"') in text or not block["input"]
                other["input"] = block["input"]
    for one in (whole, streamed):
        one.pop("id")
        usage = one["usage"]
        # The second finds the first in the cache.
        usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    assert whole == streamed


def options(rng):
    # Where a form allows other tokens than the script's, they are the same both times.
    fields = {"max_tokens": 1000, "temperature": 0}
    if rng.random() < 0.4:
        fields["max_tokens"] = rng.randrange(1, 60)
    if rng.random() < 0.4:
        fields["stop_sequences"] = rng.sample(["so", "}", "see", "</", "\n", "1"], 2)
    if rng.random() < 0.7:
        fields["thinking"] = {"type": "adaptive"}
    if rng.random() < 0.8:
        fields["tools"] = [
            {"name": name, "input_schema": answer_texts.TOOLS[name] or {"type": "object"}}
            for name in NAMES
        ]
        fields["tool_choice"] = {
            "type": rng.choice(["auto", "auto", "any", "none"]),
            "disable_parallel_tool_use": rng.random() < 0.2,
        }
    return fields


@pytest.mark.parametrize("form", FORMS)
def test_a_streamed_message_is_the_whole_one(server, tokenizer, template, form):
    text, make = FORMS[form]
    template(text)
    seen = dict.fromkeys(("text", "thinking", "tool_use", "max_tokens", "stop_sequence"), 0)
    for number in range(N_CONVERSATIONS):
        rng = random.Random(f"{form} {number}")
        answer = ids_of(tokenizer, make(rng))
        fields = options(rng)
        if form in ("no tools", "thinks"):
            fields.pop("tools", None)
            fields.pop("tool_choice", None)
        body = ASK | {"messages": [{"role": "user", "content": f"hi {number}"}], **fields}
        n_prompt = server.client.post(COUNT, json=body).json()["input_tokens"]
        server.runner.script = Script([answer], min(tokenizer.eos_ids), n_prompt)
        whole = server.client.post(MESSAGES, json=body)
        assert whole.status_code == 200, whole.text
        events = events_of(server, body)
        server.runner.script = None
        streamed = assembled(events)
        begun, ended = events[0]["message"]["usage"], streamed["usage"]
        for name in ("input_tokens", "cache_read_input_tokens"):  # clients add up what they saw
            assert begun[name] == ended[name]
        assert begun["input_tokens"] + begun["cache_read_input_tokens"] == n_prompt
        for kind in {block["type"] for block in streamed["content"]}:
            seen[kind] += 1
        if streamed["stop_reason"] in seen:
            seen[streamed["stop_reason"]] += 1
        same(whole.json(), streamed)
    assert seen["max_tokens"] >= cases(0, 1), seen
    assert seen["text"] >= cases(1, 5), seen
    assert (seen["thinking"] >= cases(1, 2)) == (form not in ("no tools", "mistral")), seen
    assert (seen["tool_use"] >= cases(1, 5)) == (form not in ("no tools", "thinks")), seen


def test_why_an_answer_ends(server, tokenizer, template):
    template("{% for m in messages %}{{ m.content }}{% endfor %}")
    end = min(tokenizer.eos_ids)

    def answer(**more):
        body = ASK | {"max_tokens": 100} | more
        n_prompt = server.client.post(COUNT, json=body).json()["input_tokens"]
        said = tokenizer.encode("one two three", add_bos=False, parse_special=False)
        server.runner.script = Script([said], end, n_prompt)
        made = server.client.post(MESSAGES, json=body).json()
        text = "".join(block["text"] for block in made["content"])
        return text, made["stop_reason"], made["stop_sequence"]

    assert answer() == ("one two three", "end_turn", None)
    assert answer(max_tokens=3) == ("one", "max_tokens", None)
    assert answer(max_tokens=0) == ("", "max_tokens", None)
    assert answer(stop_sequences=["x", "two"]) == ("one ", "stop_sequence", "two")
    # More than there is room for is no error: the answer ends where the context does.
    long = [{"role": "user", "content": "x" * 2040}]
    assert answer(messages=long, max_tokens=30_000) == (
        "one two ",
        "model_context_window_exceeded",
        None,
    )


def test_no_reasoning_is_shown_that_was_not_asked_for(server, tokenizer, template):
    template("{% for m in messages %}{{ m.content }}{% endfor %}<think>{# </think> #}")
    said = tokenizer.encode("why</think>because", add_bos=False, parse_special=False)

    def kinds(**body):
        n_prompt = server.client.post(COUNT, json=ASK | body).json()["input_tokens"]
        server.runner.script = Script([said], min(tokenizer.eos_ids), n_prompt)
        made = server.client.post(MESSAGES, json=ASK | {"max_tokens": 40} | body).json()
        assert 0 < made["usage"]["output_tokens_details"]["thinking_tokens"] < 20
        return [block["type"] for block in made["content"]]

    assert kinds() == ["text"]
    assert kinds(thinking={"type": "disabled"}) == ["text"]
    assert kinds(thinking={"type": "adaptive", "display": "omitted"}) == ["text"]
    assert kinds(thinking={"type": "adaptive"}) == ["thinking", "text"]


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("begun", [True, False])
def test_a_budget_ends_reasoning(server, tokenizer, template, begun, tools):
    tag = "<think>" if begun else ""
    template("{% for m in messages %}{{ m.content }}{% endfor %}" + tag + "{# </think> #}")

    def answer(said, budget, **more):
        body = ASK | {"max_tokens": 100, "temperature": 0, **more}
        body["thinking"] = {"type": "enabled", "budget_tokens": budget}
        if tools:
            body["tools"] = [WEATHER]
        n_prompt = server.client.post(COUNT, json=body).json()["input_tokens"]
        said = tokenizer.encode(said, add_bos=False, parse_special=False)
        server.runner.script = Script([said], min(tokenizer.eos_ids), n_prompt)
        whole = server.client.post(MESSAGES, json=body).json()
        same(json.loads(json.dumps(whole)), assembled(events_of(server, body)))
        parts = [block.get("thinking", block.get("text")) for block in whole["content"]]
        return parts, whole["stop_reason"]

    thought = "" if begun else "<think>"
    long = thought + "0123456789" * 4
    # Digits are tokens; the tag, of six, takes the place of as many.
    assert answer(long, 5) == (["01234", "123456789" + "0123456789" * 2], "end_turn")
    assert answer(long, 5, max_tokens=12) == (["01234", "1"] if begun else ["01234"], "max_tokens")
    within = thought + "0123</think>456"
    assert answer(within, 20) == (["0123", "456"], "end_turn")
    assert answer(within, 99) == (["0123", "456"], "end_turn")
    if not begun:
        assert answer("0123456789", 5) == (["0123456789"], "end_turn")


def test_a_silent_stream_pings(monkeypatch):
    monkeypatch.setattr(delivery, "KEEP_ALIVE_S", 0.02)
    ping = ["event: ping", 'data: {"type":"ping"}', ""]
    with toy_server() as other:
        other.runner.gate.clear()
        with other.client.stream("POST", MESSAGES, json=ASK | {"stream": True}) as response:
            lines = response.iter_lines()
            assert [next(lines) for _ in range(9)] == ping * 3
            other.runner.gate.set()
            assert list(lines)[-3:] == ["event: message_stop", 'data: {"type":"message_stop"}', ""]


def test_a_stream_that_fails_ends_with_an_error():
    with toy_server() as other:
        other.runner.fail_on_token = other.state.tokenizer.encode(
            "z", add_bos=False, parse_special=False
        )[0]
        body = ASK | {"messages": [{"role": "user", "content": "z"}]}
        events = events_of(other, body)
        assert events[0]["type"] == "message_start"
        assert events[-1]["type"] == "error"
        assert events[-1]["error"]["type"] == "api_error"
        assert other.client.post(MESSAGES, json=body).status_code == 500
