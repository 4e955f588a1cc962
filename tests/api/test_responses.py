"""``/v1/responses`` over a socket: each event and each answer as OpenAI's library describes it."""

import json
import re
from dataclasses import replace

import openai
import pydantic
import pytest

from lanewise.text.answers.harmony import TOKENS
from lanewise.text.answers.sectioned_calls import DEEPSEEK
from responses_events import PATH, ask, events_of, replayed, text_of
from toy_server import CONFIG, toy_server

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 4}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "name": "weather", "parameters": CITY}
NOW = {"type": "function", "name": "now", "description": "The time.", "strict": True}
CODE = {
    "type": "custom",
    "name": "code",
    "description": "Runs it.",
    "format": {"type": "grammar", "syntax": "regex", "definition": '[a-c"\\\\\\n/]{3,6}'},
}
LINES = {**CODE, "name": "lines"}
LINES["format"] = {"type": "grammar", "syntax": "lark"}
LINES["format"]["definition"] = """start: line line line?
line: /[x-z"\\\\]{2}/ LF
%import common.LF"""
FREE = {"type": "custom", "name": "free"}
FAMILIES = {
    "hermes": "{{ tools | tojson }}<tool_call>",
    "llama": '{{ tools | tojson }}"parameters": ',
    "qwen3-coder": "{{ tools | tojson }}<tool_call><function=",
    "mistral": "{{ tools | tojson }}[TOOL_CALLS]",
}
MORE_FAMILIES = {
    "lfm2": "{{ tools | tojson }}<|tool_list_start|><|tool_call_start|>",
    "glm": "{{ tools | tojson }}<tool_call><arg_key>",
    "mistral-named": "{{ tools | tojson }}[TOOL_CALLS][ARGS]",
    "deepseek": "{{ tools }}" + DEEPSEEK.begin,
}
MESSAGES = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
THINK = MESSAGES + "{{ begun }}{# </think> #}"
HARMONY = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>"
    "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% endfor %}<|start|>assistant{# analysis #}"
)
TEMPLATES = {name: text + MESSAGES for name, text in (FAMILIES | MORE_FAMILIES).items()}
TEMPLATES["harmony"] = HARMONY


@pytest.fixture(scope="module")
def server():
    config = replace(CONFIG, max_model_len=2048, n_blocks=256)
    with toy_server(config, more_special=TOKENS) as running:
        yield running


@pytest.fixture(scope="module")
def sdk(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def refused(client, status=400, **body):
    answer = client.post(PATH, json={"input": "hi", "max_output_tokens": 1, **body})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def test_text_streamed_is_text_whole(client):
    for seed in range(20):
        cut = ask(client, seed=seed, max_output_tokens=seed + 1)
        is_cut = cut["status"] == "incomplete"
        assert is_cut == (cut["incomplete_details"] == {"reason": "max_output_tokens"})
        assert cut["output"][-1]["status"] == cut["status"]
        ended = ask(client, seed=seed, structured_outputs={"choice": ["the end"]})
        assert (ended["status"], text_of(ended)) == ("completed", "the end")
        assert ended["usage"]["output_tokens"] <= 8


def test_an_answer_of_nothing_is_an_empty_message(client):
    whole = ask(client, structured_outputs={"regex": ""})
    assert whole["status"] == "completed"
    assert [item["content"][0]["text"] for item in whole["output"]] == [""]


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_streamed_are_calls_whole(client, template, family):
    template(TEMPLATES[family])
    for seed in range(4):
        both = {"tools": [WEATHER, NOW], "seed": seed, "max_output_tokens": 200}
        whole = ask(client, tool_choice="required", **both)
        calls = [item for item in whole["output"] if item["type"] == "function_call"]
        assert calls
        if whole["status"] == "completed":
            assert all(json.loads(call["arguments"]).keys() <= {"city"} for call in calls)
            assert {call["status"] for call in calls} == {"completed"}
        named = ask(client, tool_choice={"type": "function", "name": "weather"}, **both)
        assert [item["name"] for item in named["output"]] == ["weather"]
        cut = ask(client, tool_choice="required", **{**both, "max_output_tokens": 40})
        assert all(item["status"] == cut["status"] for item in cut["output"][-1:])
        ask(client, **both)


@pytest.mark.parametrize("family", TEMPLATES)
def test_custom_tools_are_called_with_texts_of_their_grammar(client, template, family):
    template(TEMPLATES[family])
    seen = set()
    for seed in range(3):
        for tool, pattern in ((CODE, '[a-c"\\\\\n/]{3,6}'), (LINES, '([x-z"\\\\]{2}\n){2,3}')):
            whole = ask(
                client,
                tools=[WEATHER, CODE, LINES],
                tool_choice={"type": "custom", "name": tool["name"]},
                seed=seed,
                max_output_tokens=500,
            )
            calls = [item for item in whole["output"] if item["type"] == "custom_tool_call"]
            if whole["status"] == "completed":
                assert [call["name"] for call in calls] == [tool["name"]]
                assert re.fullmatch(pattern, calls[0]["input"]), calls
                seen.add(tool["name"])
    assert seen == {"code", "lines"}


@pytest.mark.parametrize("family", FAMILIES)
def test_custom_tools_streamed_are_custom_tools_whole(client, template, family):
    template(TEMPLATES[family])
    for seed in range(3):
        whole = ask(client, tools=[FREE], tool_choice="required", seed=seed, max_output_tokens=90)
        assert {item["type"] for item in whole["output"]} <= {"custom_tool_call"}


def test_which_tools_may_be_called(client, template):
    template(FAMILIES["hermes"] + MESSAGES)
    allowed = {"type": "allowed_tools", "mode": "required"}
    allowed["tools"] = [{"type": "function", "name": "now"}]
    for seed in range(3):
        more = {"seed": seed, "max_output_tokens": 250, "tools": [WEATHER, NOW]}
        whole = ask(client, tool_choice=allowed, **more)
        assert {item["name"] for item in whole["output"]} == {"now"}
        assert whole["tool_choice"] == allowed
        one = ask(client, tool_choice="required", parallel_tool_calls=False, **more)
        assert len(one["output"]) == 1
    none = ask(client, tool_choice="none", tools=[WEATHER], structured_outputs={"choice": ["no"]})
    assert text_of(none) == "no"


def test_reasoning_is_an_item_of_its_own(client, template):
    template(THINK)
    kinds = set()
    digits = {"structured_outputs": {"regex": "[0-9]{3}"}, "max_output_tokens": 400}
    for seed in range(6):
        whole = ask(client, seed=seed, chat_template_kwargs={"begun": "<think>"}, **digits)
        kinds.add(tuple(item["type"] for item in whole["output"]))
        thought = whole["output"][0]
        assert thought["summary"] == []
        assert thought["content"][0]["type"] == "reasoning_text"
        assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        if whole["status"] == "completed":
            assert text_of(whole).isdigit()
    assert ("reasoning",) in kinds or ("reasoning", "message") in kinds
    template(HARMONY)
    for seed in range(6):
        ask(client, seed=seed, tools=[WEATHER], max_output_tokens=200)
        ask(client, seed=seed, tools=[WEATHER], tool_choice="required", max_output_tokens=250)
    assert refused(client, reasoning={"effort": "xhigh"})["param"] == "reasoning.effort"
    sizes = [
        ask(client, reasoning={"effort": effort})["usage"]["input_tokens"]
        for effort in ("low", "medium")
    ]
    assert sizes[1] - sizes[0] == len("medium") - len("low")


def test_log_probabilities_of_the_text(client):
    for seed in range(4):
        whole = ask(
            client,
            seed=seed,
            top_logprobs=2,
            include=["message.output_text.logprobs"],
            skip_special_tokens=False,
        )
        (part,) = whole["output"][0]["content"]
        assert {len(entry["top_logprobs"]) for entry in part["logprobs"]} == {2}
        told = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
        if whole["status"] == "incomplete":
            assert len(part["logprobs"]) == whole["usage"]["output_tokens"]
            assert told.decode("utf-8", "replace") == part["text"]
    assert ask(client)["output"][0]["content"][0]["logprobs"] == []


def test_the_form_of_a_text(client, sdk):
    schema = {"type": "json_schema", "name": "it", "schema": CITY, "strict": True}
    whole = ask(client, text={"format": schema}, max_output_tokens=100)
    assert json.loads(text_of(whole)).keys() == {"city"}
    assert whole["text"]["format"] | {"description": None} == schema | {"description": None}
    anything = ask(client, text={"format": {"type": "json_object"}}, max_output_tokens=400)
    assert text_of(anything).startswith("{")

    class City(pydantic.BaseModel):
        city: str = pydantic.Field(max_length=4)

    ask_ = {"model": "toy", "input": "hi", "temperature": 1.5, "extra_body": {"seed": 1}}
    parsed = sdk.responses.parse(text_format=City, max_output_tokens=200, **ask_)
    assert isinstance(parsed.output_parsed, City)
    with sdk.responses.stream(text_format=City, max_output_tokens=200, **ask_) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_parsed == parsed.output_parsed
    assert kinds[-1] == "response.completed"
    wrong = {"format": {"type": "json_schema", "name": "x"}}
    assert refused(client, text=wrong)["param"] == "text.format.schema"
    strict = {"type": "json_schema", "name": "x", "strict": True, "schema": {"type": "wrong"}}
    assert refused(client, text={"format": strict})["param"] == "text.format.schema"


@pytest.mark.parametrize("family", TEMPLATES)
def test_an_answer_is_calls_or_has_its_form(client, template, family):
    template(TEMPLATES[family])
    yes = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
    yes["additionalProperties"] = False
    schema = {"type": "json_schema", "name": "it", "schema": yes, "strict": True}
    body = {"tools": [WEATHER], "text": {"format": schema}, "max_output_tokens": 600}
    if family == "llama":
        assert refused(client, **body)["param"] == "text.format.schema"
        assert ask(client, **body, tool_choice="required")["output"]
        return
    for seed in range(4):
        whole = ask(client, **body, seed=seed)
        called = any(item["type"] == "function_call" for item in whole["output"])
        if whole["status"] == "completed" and not called:
            assert json.loads(text_of(whole)).keys() == {"yes"}
    wrong = {"format": {**schema, "schema": {"type": 1}}}
    assert refused(client, **{**body, "text": wrong})["param"] == "text.format.schema"
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    strict = {**WEATHER, "strict": True, "parameters": unique}
    error = refused(client, **{**body, "tools": [NOW, strict]})
    assert error["param"] == "tools[1].parameters"


def test_the_conversation_is_what_the_template_gets(client, template):
    template(
        "{% for m in messages %}{{ m.role }}|{{ m.content }}|{{ m.reasoning_content }}|"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}={{ c.function.arguments | tojson }}"
        "{% endfor %};{% endfor %}"
    )
    seen = []

    def rendered(**body):
        """The prompt, told by its size: the toy has one token for nearly every character."""
        used = ask(client, max_output_tokens=1, **body)["usage"]
        return used["input_tokens"]

    items = [
        {"role": "developer", "content": "B"},
        {"role": "user", "content": [{"type": "input_text", "text": "C"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "D", "annotations": []}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"x": 1}'},
        {"type": "custom_tool_call", "call_id": "2", "name": "g", "input": "Y"},
        {"type": "function_call_output", "call_id": "1", "output": "E"},
        {
            "type": "custom_tool_call_output",
            "call_id": "2",
            "output": [{"type": "input_text", "text": "F"}],
        },
    ]
    expected = (
        'system|A\n\nB||;user|C||;assistant|D|R|f={"x": 1}g={"input": "Y"};tool|E||;tool|F||;'
    )
    seen.append(rendered(input=items, instructions="A"))
    whole = ask(client, input=items, instructions="A", max_output_tokens=1)
    kept = client.get(f"{PATH}/{whole['id']}/input_items?order=asc").json()["data"]
    assert [item["type"] for item in kept] == [item.get("type", "message") for item in items]
    template(expected.replace("{", "{{ '{' }}"))
    seen.append(rendered())
    assert seen[0] == seen[1]


def test_going_on_from_what_is_kept(client, template):
    template(MESSAGES)
    first = ask(client, input="one", structured_outputs={"choice": ["two"]}, instructions="no")
    second = ask(client, input="three", previous_response_id=first["id"], max_output_tokens=1)
    again = [{"role": "user", "content": "one"}, *first["output"]]
    again.append({"role": "user", "content": "three"})
    same = ask(client, input=again, max_output_tokens=1)
    assert second["usage"]["input_tokens"] == same["usage"]["input_tokens"]
    assert text_of(second) == text_of(same)
    assert second["previous_response_id"] == first["id"]
    referred = [{"type": "item_reference", "id": first["output"][0]["id"]}]
    referred = [again[0], *referred, again[2]]
    assert text_of(ask(client, input=referred, max_output_tokens=1)) == text_of(same)

    listed = client.get(f"{PATH}/{second['id']}/input_items").json()
    texts = [item["content"][0]["text"] for item in listed["data"]]
    assert texts == ["three", "two", "one"]
    assert not listed["has_more"]
    page = client.get(f"{PATH}/{second['id']}/input_items?limit=1&order=asc").json()
    assert (page["first_id"], page["has_more"]) == (page["last_id"], True)
    rest = client.get(f"{PATH}/{second['id']}/input_items?order=asc&after={page['last_id']}").json()
    assert [item["id"] for item in rest["data"]] == [item["id"] for item in listed["data"][1::-1]]
    for wrong in ("limit=0", "limit=101", "order=up", "after=x"):
        answer = client.get(f"{PATH}/{second['id']}/input_items?{wrong}")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == wrong.split("=")[0]


def test_what_is_kept_is_what_was_answered(client, sdk):
    whole = client.post(PATH, json={"input": "hi", "max_output_tokens": 3}).json()
    assert client.get(f"{PATH}/{whole['id']}").json() == whole
    assert sdk.responses.retrieve(whole["id"]).id == whole["id"]
    assert [item.type for item in sdk.responses.input_items.list(whole["id"])] == ["message"]
    cancelled = client.post(f"{PATH}/{whole['id']}/cancel")
    assert (cancelled.status_code, "synchronous" in cancelled.text) == (400, True)
    assert client.get(f"{PATH}/{whole['id']}?stream=true").status_code == 400
    assert client.delete(f"{PATH}/{whole['id']}").json()["deleted"] is True
    for verb, more in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
        gone = client.request(verb, f"{PATH}/{whole['id']}{more}")
        assert gone.status_code == 404
        assert gone.json()["error"]["type"] == "invalid_request_error"
    error = refused(client, previous_response_id=whole["id"])
    assert (error["param"], error["code"]) == (
        "previous_response_id",
        "previous_response_not_found",
    )
    unkept = ask(client, store=False)
    assert unkept["store"] is False
    assert client.get(f"{PATH}/{unkept['id']}").status_code == 404
    referred = [{"type": "item_reference", "id": unkept["output"][0]["id"]}]
    assert refused(client, input=referred)["param"] == "input[0].id"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [WEATHER, {**FREE, "name": "weather"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}, "tools": [WEATHER]}, "tool_choice"),
        ({"tool_choice": {"type": "custom", "name": "weather"}, "tools": [WEATHER]}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"include": [7]}, "include[0]"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None),
        ({"input": [{"role": "tool", "content": ""}]}, "input[0].role"),
        (
            {"input": [{"type": "function_call_output", "call_id": "7", "output": ""}]},
            "input",
        ),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"truncation": "some"}, "truncation"),
        ({"input": "x" * 5000}, "input"),
        ({"tools": [{**CODE, "format": {**CODE["format"], "definition": "("}}]}, "tools[0].format"),
        (
            {"tools": [{**WEATHER, "strict": True, "parameters": {"type": 1}}]},
            "tools[0].parameters",
        ),
    ],
)
def test_what_cannot_be_is_named(client, body, param):
    error = refused(client, **body)
    if param is not None:
        assert error["param"] == param, error
    else:
        assert "text" in error["message"]


def test_keys_do_not_see_each_others_answers():
    with toy_server(api_keys=("a", "b")) as server:
        headers = {"authorization": "Bearer a"}
        whole = server.client.post(
            PATH, json={"input": "hi", "max_output_tokens": 1}, headers=headers
        ).json()
        path = f"{PATH}/{whole['id']}"
        assert server.client.get(path).status_code == 401
        assert server.client.get(path, headers=headers).status_code == 200
        other = {"authorization": "Bearer b"}
        assert server.client.get(path, headers=other).status_code == 404
        assert server.client.delete(path, headers=other).status_code == 404
        body = {"input": "hi", "previous_response_id": whole["id"]}
        assert server.client.post(PATH, json=body, headers=other).status_code == 400


def test_an_answer_that_fails_on_its_way_says_so(server, client):
    form = {"regex": "[a-z]{5}~[a-z]{50}"}
    body = {"input": "hi", "structured_outputs": form, "stream": True, "seed": 1}
    server.runner.fail_on_token = ord("~")
    try:
        events = events_of(client.post(PATH, json=body).text)
    finally:
        server.runner.fail_on_token = None
    last = events[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert replayed(events) == last["response"]["output"]
    assert text_of(last["response"]).startswith(tuple("abcdefghijklmnopqrstuvwxyz"))
    assert client.get(f"{PATH}/{last['response']['id']}").status_code == 404
