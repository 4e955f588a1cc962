"""Conversations as clients send them, with the templates of other models."""

import json

import pytest

from lanewise.text.chat_template import ChatTemplate

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
HISTORY = [
    *HELLO,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
]
NOW = {"type": "function", "function": {"name": "now"}}
CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WITH_TOOLS = "{{ tools | tojson }}{% for m in messages %}{{ m | tojson }}{% endfor %}"
STRICT = (
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% if 'tool_calls' in m and m.tool_calls | length != 1 %}{{ raise_exception('one call') }}"
    "{% endif %}{{ m.role }}:{{ m.content }}{{ m.tool_calls }}.{% endfor %}"
)


@pytest.fixture
def prompt_of(client, server):
    """The prompt that a request becomes with a chat template."""
    own = server.state.chat_template

    def prompt_of(template, messages, **fields):
        server.state.chat_template = ChatTemplate({"default": template})
        ask = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
        answer = client.post(CHAT, json=ask | fields)
        assert answer.status_code == 200, answer.text
        ids = answer.json()["choices"][0]["prompt_token_ids"]
        return server.state.tokenizer.decode(ids, skip_special=False)

    yield prompt_of
    server.state.chat_template = own


@pytest.mark.parametrize("template", [CHATML, WITH_TOOLS], ids=["without tools", "with tools"])
def test_tools_that_must_not_be_called_leave_the_prompt_as_it_was(prompt_of, template):
    with_tools = prompt_of(template, HISTORY, tools=[NOW])
    assert prompt_of(template, HISTORY, tools=[NOW], tool_choice="none") == with_tools
    assert "noon" in with_tools


def test_a_history_with_calls_needs_no_tools(prompt_of):
    told = prompt_of(CHATML, HISTORY)
    assert '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><end>' in told
    assert "<|user|><tool_response>\nnoon\n</tool_response><end><|assistant|>" in told
    assert prompt_of(CHATML, HISTORY, tools=[NOW]).endswith(told.partition("hi<end>")[2])


def test_no_calls_are_as_if_there_were_none(prompt_of):
    says = {"role": "assistant", "content": "yes"}
    plain = prompt_of(STRICT, [*HELLO, says, *HELLO])
    for empty in ([], None):
        assert prompt_of(STRICT, [*HELLO, {**says, "tool_calls": empty}, *HELLO]) == plain


@pytest.mark.parametrize("text", [">", "e", "end", "", "<|", "an answer"])
def test_a_message_is_continued_where_it_ends(prompt_of, text):
    messages = [*HELLO, {"role": "assistant", "content": text}]
    told = prompt_of(CHATML, messages, continue_final_message=True, add_generation_prompt=False)
    assert told.endswith(f"hi<end><|assistant|>{text}")


def test_system_words_go_where_the_template_has_a_place(prompt_of):
    system = {"role": "system", "content": "be brief"}
    assert prompt_of(STRICT, [system, *HELLO]) == prompt_of(
        STRICT, [{"role": "user", "content": "be brief\n\nhi"}]
    )
    developer = {"role": "developer", "content": "be brief"}
    assert prompt_of(CHATML, [developer, *HELLO]).startswith("<|system|>be brief<end>")


def test_parts_of_a_message_are_lines(prompt_of):
    parts = [{"type": "text", "text": text} for text in ("one", "two")]
    told = prompt_of(CHATML, [{"role": "user", "content": parts}])
    assert told.startswith("<|user|>one\ntwo<end>")


@pytest.mark.parametrize(
    ("escaped", "meant"),
    [
        (r"\ud83d", "\ufffd"),
        (r"\ude00 \uD83D", "\ufffd \ufffd"),
        (r"\ud83d\ud83d\ude00", "\ufffd😀"),
        (r"\\ud83d", r"\ud83d"),
        (r"\\\udc00", "\\\ufffd"),
    ],
)
def test_halves_of_characters_are_valid_json(client, server, prompt_of, escaped, meant):
    prompt_of(CHATML, HELLO)  # which sets the template
    arguments = json.dumps(f'{{"a": "{escaped}"}}')
    bodies = {
        "/v1/completions": f'{{"prompt": "{escaped}", ',
        CHAT: f'{{"messages": [{{"role": "user", "content": "{escaped}"}}], ',
        f"{CHAT}?arguments": '{"messages": [{"role": "assistant", "content": null, "tool_calls": '
        f'[{{"id": "x", "function": {{"name": "f", "arguments": {arguments}}}}}]}}], ',
    }
    for path, begin in bodies.items():
        body = begin + '"max_tokens": 1, "return_token_ids": true}'
        answer = client.post(path, content=body.encode())
        assert answer.status_code == 200, answer.text
        answer = answer.json()
        ids = answer["choices"][0]["prompt_token_ids"]
        told = server.state.tokenizer.decode(ids, skip_special=False)
        assert meant in told or json.dumps(meant, ensure_ascii=False)[1:-1] in told
