"""Structured output and tool calls over HTTP, in the words of OpenAI, vLLM and llama.cpp."""

import json
import logging
import re
from dataclasses import replace

import openai
import pytest

from lanewise.text.answers.sectioned_calls import DEEPSEEK, DEEPSEEK_V31, KIMI
from toy_server import CONFIG, toy_server

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
ASK = {"prompt": "abc", "max_tokens": 120, "seed": 3, "temperature": 1.5}
HELLO = [{"role": "user", "content": "hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "strict": True}}
GBNF = 'root ::= "a" [0-9]{2} "z"'
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 4}}}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {**CITY, "required": ["city"]}},
    },
    {"type": "function", "function": {"name": "now", "description": "The time.", "strict": True}},
]
NOW = {"type": "function", "function": {"name": "now"}}
# What each family's template says of its calls; the rest of a template does not matter here.
FAMILIES = {
    "hermes": "{{ tools | tojson }}<tool_call>",
    "mistral": "{{ tools | tojson }}[TOOL_CALLS]",
    "llama": '{{ tools | tojson }}"parameters": ',
    "generic": "",
    "qwen3-coder": "{{ tools | tojson }}<tool_call><function=",
    "glm": "{{ tools | tojson }}<tool_call><arg_key>",
    "phi": "{{ messages[0].tools }}<|/tool|>",
    "mistral-named": "{{ tools | tojson }}[TOOL_CALLS][ARGS]",
    "deepseek": "{{ tools | tojson }}" + DEEPSEEK.begin + "```json",
    "deepseek-v3.1": "{{ tools | tojson }}" + DEEPSEEK_V31.begin,
    "kimi": "{{ tools | tojson }}" + KIMI.begin,
    "lfm2": "<|tool_list_start|>{{ tools | tojson }}",
}


# Of calls; Kimi's are its own but for those that it gives twice.
IDS = {"mistral": r"\w{9}", "kimi": r"functions\.\w+:\d{1,4}|call_\w{24}"}
NAMED_SEND = {"tool_choice": {"type": "function", "function": {"name": "send"}}}


def tool(name, parameters, *, strict=False):
    function = {"name": name, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": function}


@pytest.fixture(scope="module")
def server():
    """With room for tools in prompts of single bytes."""
    with toy_server(replace(CONFIG, max_model_len=2048, n_blocks=128)) as running:
        yield running


@pytest.fixture(scope="module")
def sdk(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


@pytest.fixture(params=FAMILIES)
def family(request, template):
    template(FAMILIES[request.param] + "{% for m in messages %}{{ m.content }}{% endfor %}")
    return request.param


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": NAMED},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
        {"json_schema": SCHEMA},
    ],
    ids=lambda form: next(iter(form)),
)
def test_a_schema_gives_the_same_valid_answer_in_every_dialect(client, server, form):
    before = server.metric("lanewise_forced_tokens_total")
    answer = client.post(COMPLETIONS, json=ASK | form | {"n": 2}).json()
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        value = json.loads(choice["text"])
        assert list(value) == ["name", "ok"]
        assert len(value["name"]) <= 5
    plain = client.post(COMPLETIONS, json=ASK | {"guided_json": SCHEMA, "n": 2}).json()
    assert plain["choices"] == answer["choices"]
    assert answer["usage"]["completion_tokens"] > 2 * len('{"name": ""')
    server.wait_until(lambda: server.metric("lanewise_forced_tokens_total") > before)


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"guided_regex": "[ab]{2,4}"}, "[ab]{2,4}"),
        ({"structured_outputs": {"regex": "[ab]{2,4}"}}, "[ab]{2,4}"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"structured_outputs": {"choice": ["only this"]}}, "only this"),
        ({"grammar": GBNF}, "a[0-9]{2}z"),
        ({"guided_grammar": 'start: "q" /[xy]{2}/'}, "q[xy]{2}"),
        ({"structured_outputs": {"grammar": GBNF}}, "a[0-9]{2}z"),
    ],
)
def test_other_forms(client, form, pattern):
    (choice,) = client.post(COMPLETIONS, json=ASK | form).json()["choices"]
    assert re.fullmatch(pattern, choice["text"])
    assert choice["finish_reason"] == "stop"


def test_json_object_in_chat_whole_and_streamed(sdk):
    ask = {"model": "toy", "messages": HELLO, "max_tokens": 200, "seed": 1}
    for form in ({"type": "json_object"}, NAMED):
        whole = sdk.chat.completions.create(**ask, response_format=form).choices[0]
        assert whole.message.content.startswith("{")
        if whole.finish_reason == "stop":
            assert isinstance(json.loads(whole.message.content), dict)
        events = list(sdk.chat.completions.create(**ask, response_format=form, stream=True))
        streamed = "".join(event.choices[0].delta.content or "" for event in events)
        assert streamed == whole.message.content
    assert whole.finish_reason == "stop"
    assert sdk.chat.completions.create(**ask, response_format={"type": "text"}).choices


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"guided_json": {"not": {}}}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": {"const": 962148.5201964919}}, "guided_json"),
        ({"structured_outputs": {"regex": "[a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_choice"),
        ({"grammar": "root ::= nothing"}, "grammar"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"not": {}}, "strict": True},
                }
            },
            "response_format.json_schema.schema",
        ),
    ],
)
def test_a_form_that_cannot_be_used_is_a_400_that_names_it(client, change, param):
    answer = client.post(COMPLETIONS, json=ASK | change)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_refused_and_cached_grammars_are_counted(client, server):
    def counts():
        return [
            server.metric("lanewise_grammars_total", result=result)
            for result in ("compiled", "cached", "refused")
        ]

    before = counts()
    for pattern in ("x{7}", "x{7}", "x{7"):
        client.post(COMPLETIONS, json=ASK | {"guided_regex": pattern + "(", "prompt": "q"})
        client.post(COMPLETIONS, json=ASK | {"guided_regex": pattern, "prompt": "q"})
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [1, 1, 4]


@pytest.mark.parametrize("choice", ["required", NOW], ids=["required", "named"])
def test_tools_are_called_whole_and_streamed(sdk, family, choice):
    ask = {"model": "toy", "messages": HELLO, "tools": TOOLS, "tool_choice": choice}
    ask |= {"max_tokens": 900, "seed": 12, "temperature": 1.5, "n": 2}
    whole = sdk.chat.completions.create(**ask)
    streamed = [{} for _ in whole.choices]
    reasons = [None, None]
    for event in sdk.chat.completions.create(**ask, stream=True):
        (part,) = event.choices
        assert not part.delta.content
        reasons[part.index] = part.finish_reason or reasons[part.index]
        for call in part.delta.tool_calls or ():
            name, arguments = streamed[part.index].get(call.index, (call.function.name, ""))
            arguments += call.function.arguments
            streamed[part.index][call.index] = (name, arguments)
    for one, other, reason in zip(whole.choices, streamed, reasons, strict=True):
        calls = [(call.function.name, call.function.arguments) for call in one.message.tool_calls]
        assert list(other.values()) == calls
        assert one.finish_reason == reason == "tool_calls"
        assert one.message.content is None
        for name, arguments in calls:
            assert name == "now" or choice == "required"
            assert list(json.loads(arguments)) == ([] if name == "now" else ["city"])
        ids = [call.id for call in one.message.tool_calls]
        assert len(set(ids)) == len(ids)
        shape = IDS.get(family.partition("-")[0], r"call_\w{24}")
        assert all(re.fullmatch(shape, one) for one in ids)


def test_auto_answers_in_text_or_calls(sdk, template):
    template(FAMILIES["llama"])
    ask = {"model": "toy", "messages": HELLO, "tools": TOOLS, "max_tokens": 60, "seed": 2}
    text = sdk.chat.completions.create(**ask).choices[0]
    # A brace at the start begins a call; from there on the grammar decides.
    brace = {str(ord("{")): 100}
    call = sdk.chat.completions.create(**ask, logit_bias=brace).choices[0]
    none = sdk.chat.completions.create(**ask, logit_bias=brace, tool_choice="none").choices[0]
    assert text.message.tool_calls is None
    assert text.message.content
    assert text.finish_reason in ("stop", "length")
    assert call.finish_reason == "tool_calls"
    assert json.loads(call.message.tool_calls[0].function.arguments).keys() <= {"city"}
    assert none.message.content.startswith("{{")


def test_a_conversation_with_calls_and_results_goes_on(sdk, family):
    call = {"id": "abcdefghi", "type": "function"}
    call["function"] = {"name": "weather", "arguments": '{"city": "Bonn"}'}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "rain"},
    ]
    answer = sdk.chat.completions.create(
        model="toy", messages=messages, tools=TOOLS, tool_choice="required", max_tokens=150
    )
    assert answer.choices[0].message.tool_calls


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [NOW, NOW]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {**NOW, "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": TOOLS, "guided_regex": "("}, "guided_regex"),
        ({"tools": [NOW, tool("b", {"not": {}}, strict=True)]}, "tools[1].function.parameters"),
    ],
)
def test_tools_that_cannot_be_used_are_a_400_that_names_them(client, change, param):
    answer = client.post(CHAT, json={"messages": HELLO, "max_tokens": 5} | change)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


WRONG = {"type": "string", "format": "email", "pattern": r"^(?!\.)[a-z]"}


def test_what_cannot_be_enforced_of_a_tool_is_told_unless_it_is_strict(client, caplog):
    properties = {"to": WRONG, "n": {"enum": [7]}}
    parameters = {"type": "object", "properties": properties, "required": ["to", "n"]}
    ask = {"messages": HELLO, "max_tokens": 300, "tool_choice": "required", "seed": 3}
    with caplog.at_level(logging.INFO, "lanewise.api.observing.caller"):
        answer = client.post(CHAT, json=ask | {"tools": [NOW, tool("send", parameters)]})
    (told,) = answer.headers.get_list("x-lanewise-warning")
    assert told.startswith("tools[1].function.parameters: properties.to: the keyword 'pattern'")
    assert told in caplog.text
    choice = NAMED_SEND | {"tools": [NOW, tool("send", parameters)]}
    with client.stream("POST", CHAT, json=ask | choice | {"stream": True}) as answer:
        assert answer.headers["x-lanewise-warning"] == told
    answer = client.post(CHAT, json=ask | choice)
    assert answer.status_code == 200
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["n"] == 7  # what can be enforced is
    assert "@" in arguments["to"]
    strict = [NOW, tool("send", parameters, strict=True)]
    answer = client.post(CHAT, json=ask | {"tools": strict})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "tools[1].function.parameters"
    assert "properties.to: the keyword 'pattern'" in error["message"]


def test_a_tool_that_no_grammar_knows_has_any_object_as_arguments(client):
    contradiction = {"type": "integer", "minimum": 5, "maximum": 3}
    parameters = {"type": "object", "properties": {"n": contradiction}, "required": ["n"]}
    tools = [tool("send", parameters), NOW]
    ask = {"messages": HELLO, "max_tokens": 20, "tools": tools}
    answer = client.post(CHAT, json=ask | NAMED_SEND)
    assert answer.status_code == 200
    told = answer.headers["x-lanewise-warning"]
    assert told.startswith("tools[0].function.parameters: not enforced at all: ")
    answer = client.post(CHAT, json=ask | {"tools": [NOW, tool("send", parameters, strict=True)]})
    assert answer.json()["error"]["param"] == "tools[1].function.parameters"


def test_a_named_schema_that_is_not_strict_is_enforced_as_far_as_it_can_be(client):
    letters = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 3, "maxItems": 3}
    named = {"name": "x", "schema": letters | {"uniqueItems": True}}
    form = {"response_format": {"type": "json_schema", "json_schema": named}}
    answer = client.post(COMPLETIONS, json=ASK | form)
    told = "response_format.json_schema.schema: the keyword 'uniqueItems' cannot be enforced"
    assert answer.headers["x-lanewise-warning"] == told
    value = json.loads(answer.json()["choices"][0]["text"])
    assert len(value) == 3
    assert set(value) <= {"a", "b"}
    assert "x-lanewise-warning" not in client.post(COMPLETIONS, json=ASK).headers


def test_what_clients_write_into_schemas_breaks_no_header_and_is_bounded(client):
    properties = {f"a\r\nSet-Cookie: é{i}": {"not": {}} for i in range(20)}
    send = tool("send", {"type": "object", "properties": properties})
    ask = {"messages": HELLO, "max_tokens": 2, "tools": [send]}
    told = client.post(CHAT, json=ask).headers.get_list("x-lanewise-warning")
    assert len(told) == 9
    assert told[-1] == "12 more"
    assert "a\\r\\nSet-Cookie: \\xe90" in told[0]
