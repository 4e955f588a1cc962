"""Anthropic's Messages API: prompts, tools, forms and errors."""

import json
import re
from dataclasses import replace

import pytest

from lanewise.text.chat_template import ChatTemplate
from scripted_answers import SPECIAL
from toy_server import CONFIG, toy_server

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "hi"}]
ASK = {"model": "toy", "max_tokens": 20, "messages": HELLO}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 4}}}
WEATHER = {"name": "weather", "description": "of a city", "input_schema": CITY}
# Shows all that a template gets.
SHOWN = (
    "{% for m in messages %}<{{ m.role }} {{ m.name }} {{ m.tool_call_id }}>"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }}"
    " {{ c.function.arguments | tojson }}]{% endfor %}"
    "{% if not loop.last %}/{% endif %}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if enable_thinking %}*{% endif %}"
    "{{ reasoning_effort }}"
)


@pytest.fixture(scope="module")
def server():
    config = replace(CONFIG, max_model_len=2048, n_blocks=512)
    with toy_server(config, more_special=SPECIAL) as running:
        yield running


def prompt_of(plain_server, body):
    """The prompt of a request as the model reads it."""
    plain_server.runner.batches.clear()
    answer = plain_server.client.post(MESSAGES, json=ASK | body | {"max_tokens": 1})
    assert answer.status_code == 200, answer.text
    ids = [int(id_) for batch in plain_server.runner.batches for id_ in batch.token_ids]
    counted = plain_server.client.post(COUNT, json=ASK | body).json()
    assert counted == {"input_tokens": len(ids)}
    return plain_server.state.tokenizer.decode(ids, skip_special=False)


@pytest.fixture(scope="module")
def plain_server():
    """A server that caches nothing: all of a prompt goes through the model."""
    config = replace(CONFIG, max_model_len=2048, n_blocks=512, prefix_cache=False)
    with toy_server(config) as running:
        running.state.chat_template = ChatTemplate({"default": SHOWN})
        yield running


USE = {"type": "tool_use", "id": "a1", "name": "weather", "input": {"city": "Rome"}}
ROME = '{"city": "Rome"}'
THOUGHT = {"type": "thinking", "thinking": "Hm", "signature": "s"}
RESULT = {"type": "tool_result", "tool_use_id": "a1"}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def text(said):
    return {"type": "text", "text": said, **CACHED}


@pytest.mark.parametrize(
    ("system", "messages", "shown"),
    [
        (None, ["hi"], "<user  >hi"),
        ("Be kind.", ["hi"], "<system  >Be kind./<user  >hi"),
        (
            [text("Be"), text("kind.")],
            [[text("a"), text("b")]],
            "<system  >Be\nkind./<user  >a\nb",
        ),
        ("", [[text("a")], "b"], "<user  >a"),  # and an answer that goes on with b
        (None, [[], "b", "c"], "<user  >/<assistant  >b/<user  >c"),
        (
            None,
            [
                "hi",
                [{"type": "thinking", "thinking": "Hm", "signature": "s"}, text("Oh"), USE],
                [RESULT],
            ],
            "<user  >hi/<assistant  >(Hm)Oh[a1 weather " + ROME + "]/<tool weather a1>",
        ),
        (
            None,
            [
                "hi",
                [{"type": "redacted_thinking", "data": "x"}, USE, {**USE, "id": "a2"}],
                [
                    RESULT | {"content": "dry"},
                    RESULT | {"tool_use_id": "a2", "is_error": True, "content": [text("no")]},
                    text("so?"),
                ],
            ],
            "<user  >hi/<assistant  >[a1 weather " + ROME + "][a2 weather " + ROME + "]"
            "/<tool weather a1>dry/<tool weather a2>Error: no/<user  >so?",
        ),
    ],
)
def test_what_the_template_gets(plain_server, system, messages, shown):
    turns = [
        {"role": ("user", "assistant")[i % 2], "content": content}
        for i, content in enumerate(messages)
    ]
    body = {"messages": turns} | ({} if system is None else {"system": system})
    prompt = prompt_of(plain_server, body)
    assert prompt.replace("<s>", "").startswith(shown), prompt


def test_turns_of_one_role_are_one(plain_server):
    turns = [("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d"), ("user", "e")]
    body = {"messages": [{"role": role, "content": content} for role, content in turns]}
    assert prompt_of(plain_server, body).endswith("<user  >a\nb/<assistant  >cd/<user  >e")


def test_an_answer_goes_on_with_the_last_message(plain_server):
    said = [*HELLO, {"role": "assistant", "content": "The sea "}]
    assert prompt_of(plain_server, {"messages": said}).endswith("<user  >hi/<assistant  >The sea ")
    said[-1] = {"role": "assistant", "content": [text("")]}
    assert prompt_of(plain_server, {"messages": said}).endswith("<user  >hi")


def test_switches_of_the_template(plain_server):
    def end(**body):
        return prompt_of(plain_server, body).partition("hi")[2]

    assert end() == ""  # without being asked for there is no reasoning
    assert end(thinking={"type": "disabled"}) == ""
    assert end(thinking={"type": "adaptive", "display": "omitted"}) == "*"
    assert end(output_config={"effort": "low"}) == "low"
    assert end(output_config={"effort": "max"}, thinking={"type": "adaptive"}) == "*high"
    shown = end(tools=[WEATHER | CACHED])
    assert json.loads(shown) == [
        {
            "type": "function",
            "function": {"name": "weather", "description": "of a city", "parameters": CITY},
        }
    ]
    assert end(tools=[WEATHER], tool_choice={"type": "none"}) == shown


def test_tools_are_called(server):
    for seed in range(3):
        hello = [{"role": "user", "content": f"hi {seed}"}]
        for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
            body = ASK | {"messages": hello, "max_tokens": 250, "temperature": 0}
            body["tool_choice"] = choice
            body["tools"] = [WEATHER | {"strict": True}, {"name": "none", "input_schema": {}}]
            body["tool_choice"]["disable_parallel_tool_use"] = True
            made = server.client.post(MESSAGES, json=body).json()
            *_, block = made["content"]
            assert block["type"] == "tool_use"
            if choice["type"] == "tool":
                assert block["name"] == "weather"
            if block["name"] == "weather":
                assert block["input"].keys() <= {"city"}


def test_answers_have_the_form_that_is_asked_for(server):
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}},
    }
    schema |= {"required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "schema": schema}
    for field in ({"output_config": {"format": form}}, {"output_format": form}):
        made = server.client.post(MESSAGES, json=ASK | {"max_tokens": 40} | field).json()
        assert json.loads(made["content"][0]["text"])["n"] in range(10)
        form["schema"] = {"type": "object", "properties": {"n": {"format": "x", "uniqueItems": 3}}}
        refused = server.client.post(MESSAGES, json=ASK | field)
        (name,) = field
        assert error_of(refused, 400, "invalid_request_error").startswith(name)
        form["schema"] = schema


def error_of(response, status, kind):
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"type", "error"}
    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message"}
    assert body["error"]["type"] == kind
    return body["error"]["message"]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
PDF = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": ""},
}
WEB = {"type": "web_search_20250305", "name": "web_search"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_tokens": None}, "max_tokens is required"),
        ({"model": None}, "model is required"),
        ({"messages": []}, "messages: "),
        ({"max_tokens": -1}, "max_tokens: "),
        ({"temperature": 1.5}, "temperature: "),
        ({"top_k": -1}, "top_k: "),
        ({"stop_sequences": [""]}, "stop_sequences: "),
        ({"stop_sequences": "x"}, "stop_sequences: "),
        ({"system": [IMAGE]}, "system[0].type: this server reads text only"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role: "),
        (
            {"messages": [*HELLO, {"role": "user", "content": [text("a"), IMAGE]}]},
            "messages[1].content[1].type: this model reads text only",
        ),
        (
            {"messages": [{"role": "user", "content": [PDF]}]},
            "messages[0].content[0].source.type: this server reads text only",
        ),
        (
            {"messages": [{"role": "user", "content": [RESULT | {"content": [IMAGE]}]}]},
            "messages[0].content[0].content[0].type: this model reads text only",
        ),
        (
            {"messages": [{"role": "user", "content": [USE]}]},
            "messages[0]: a message of role user has no tool_use",
        ),
        ({"messages": [*HELLO, {"role": "assistant", "content": [USE]}]}, "messages: the last one"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0]: tool_result needs tool_use_id",
        ),
        (
            {"tools": [WEB], "tool_choice": {"type": "tool", "name": "web_search"}},
            "tool_choice.name: 'web_search' is none of the tools",
        ),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema is required"),
        ({"tools": [WEATHER, WEATHER]}, "tools: two tools"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: any without tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name: "),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens: is needed"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 20}},
            "thinking.budget_tokens: 20 is not less than max_tokens",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens: "),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "prompt is too long: 3"),
    ],
)
def test_a_bad_field_is_named(server, change, says):
    answer = server.client.post(MESSAGES, json=ASK | change)
    assert error_of(answer, 400, "invalid_request_error").startswith(says)


def test_what_changes_nothing_is_accepted(server):
    more = {"metadata": {"user_id": "u"}, "service_tier": "auto", "top_k": 5, "inference_geo": None}
    more |= {"context_management": {"edits": []}, "cache_control": {"type": "ephemeral"}}
    more |= {"temperature": 1.0, "top_p": 0.9, "system": [text("x")]}
    answer = server.client.post(
        MESSAGES,
        params={"beta": "true"},
        json=ASK | more,
        headers={"anthropic-version": "2023-06-01", "anthropic-beta": "a,b"},
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


def test_the_first_request_of_claude_code_is_answered(server):
    """As version 2.1 sends it, but for the length of its texts."""
    ephemeral = {"cache_control": {"type": "ephemeral"}}
    tools = [WEATHER | {"name": f"Tool{i}", "description": "d"} for i in range(6)]
    body = {
        "model": "toy",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<r>x</r>"}, text("Say hello.")]},
            {"role": "system", "content": "Available agent types:"},
        ],
        "system": [{"type": "text", "text": "a: b;"}, text("You are"), text("x") | ephemeral],
        "tools": tools,
        "metadata": {"user_id": '{"device_id":"c3","account_uuid":"","session_id":"15"}'},
        "max_tokens": 32_000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "temperature": 0,
    }
    beta = "claude-code-20250219,interleaved-thinking-2025-05-14,effort-2025-11-24"
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": beta, "x-api-key": "none"}
    made = server.client.post(MESSAGES, params={"beta": "true"}, json=body, headers=headers)
    assert made.status_code == 200, made.text
    ends = ("end_turn", "tool_use", "model_context_window_exceeded")
    assert made.json()["stop_reason"] in ends
    # What it looks for to tell its user how much too long a conversation is.
    body["messages"][0]["content"][0]["text"] = "x" * 9000
    refused = server.client.post(MESSAGES, json=body, headers=headers)
    message = error_of(refused, 400, "invalid_request_error")
    assert re.fullmatch(r"prompt is too long: \d+ tokens > 2048 maximum", message)


def test_errors_that_no_endpoint_finds_have_the_same_form(server):
    client = server.client
    lost = client.post(MESSAGES, json=ASK | {"model": "claude"})
    assert "'claude'" in error_of(lost, 404, "not_found_error")
    assert error_of(client.post(COUNT, json=ASK | {"model": "claude"}), 404, "not_found_error")
    assert error_of(client.get(MESSAGES), 405, "invalid_request_error")
    assert error_of(client.post(MESSAGES + "/batch", json={}), 404, "not_found_error")
    assert "data-dir" in error_of(client.post(MESSAGES + "/batches", json={}), 501, "api_error")
    assert client.get("/v1/message").json()["error"]["code"] == "not_found"
    assert error_of(client.post(MESSAGES, content=b"{"), 400, "invalid_request_error")
    assert error_of(client.post(MESSAGES, content=b" " * (9 << 20)), 413, "request_too_large")
    wide = {f"x-{i}": "y" for i in range(200)}
    assert error_of(client.post(MESSAGES, json=ASK, headers=wide), 431, "invalid_request_error")


def test_keys_come_in_either_header():
    with toy_server(api_keys=("key",)) as guarded:
        for path in (MESSAGES, COUNT):
            answer = guarded.client.post(path, json=ASK)
            assert error_of(answer, 401, "authentication_error")
            wrong = guarded.client.post(path, json=ASK, headers={"x-api-key": "kez"})
            assert error_of(wrong, 401, "authentication_error")
            for header in ({"x-api-key": "key"}, {"authorization": "Bearer key"}):
                assert guarded.client.post(path, json=ASK, headers=header).status_code == 200
        # Clients may have a stale one of the two.
        both = {"x-api-key": "key", "authorization": "Bearer old"}
        assert guarded.client.get("/v1/models", headers=both).status_code == 200


def test_an_overloaded_server_says_so():
    with toy_server() as other:
        other.state.engine.stop_accepting()
        answer = other.client.post(MESSAGES, json=ASK)
        assert error_of(answer, 529, "overloaded_error")


def test_what_an_answer_begins_with_is_no_part_of_a_cached_prompt(server):
    body = ASK | {"tools": [WEATHER], "tool_choice": {"type": "any"}, "max_tokens": 100}
    for _ in range(2):
        usage = server.client.post(MESSAGES, json=body).json()["usage"]
        assert usage["input_tokens"] >= 0
    n_prompt = server.client.post(COUNT, json=body).json()["input_tokens"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == n_prompt
