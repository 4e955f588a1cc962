"""What agents send as published, and what else one part of a request must not cost all of it."""

import json
import re
import socket

import pytest
from openai.types.responses import CompactedResponse

from lanewise.api.generation import delivery
from responses_events import PATH, ask

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
HELLO = [{"role": "user", "content": "hi"}]
WARNING = "x-lanewise-warning"
HERMES = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}"
    "<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ c.function | tojson }}{% endfor %}<|end|>{% endfor %}<|assistant|>"
)
QWEN_35 = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call><function="
    "{{ c.function.name }}>{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}"
    "{% endfor %}{% endfor %}<|end|>{% endfor %}<|assistant|>"
)
GEMMA_2 = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|model|>"
)
USER = {"type": "message", "role": "user", "content": "hi"}
OBJECT = {"type": "object", "properties": {"q": {"type": "string", "maxLength": 3}}}
FUNCTION = {"type": "function", "name": "shell", "parameters": OBJECT, "strict": False}
CODEX_TOOLS = [
    FUNCTION,
    {
        "type": "namespace",
        "name": "mcp__files__",
        "description": "Files.",
        "tools": [{**FUNCTION, "name": "read"}],
    },
    {"type": "namespace", "name": "agents", "tools": [{**FUNCTION, "name": "spawn"}]},
    {"type": "web_search", "external_web_access": False},
    {"type": "tool_search", "execution": "client"},
    {"type": "local_shell"},
]


@pytest.fixture
def prompts(server, monkeypatch):
    """The texts that conversations become, the last one last."""
    seen = []
    own = server.state.templates.render

    async def render(*arguments):
        seen.append(await own(*arguments))
        return seen[-1]

    monkeypatch.setattr(server.state.templates, "render", render)
    return seen


def answered(client, path, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer


def warnings(answer):
    return "; ".join(answer.headers.get_list(WARNING))


def test_codex_offers_tools_of_others(client, template):
    template(HERMES)
    body = {"input": "hi", "tools": CODEX_TOOLS, "max_output_tokens": 1, "include": ["x"]}
    answer = answered(client, PATH, **body)
    told = warnings(answer)
    assert all(kind in told for kind in ("web_search", "tool_search", "local_shell"))
    assert [tool["type"] for tool in answer.json()["tools"]] == [t["type"] for t in CODEX_TOOLS]
    counted = answered(client, f"{PATH}/input_tokens", **body)
    n_tokens = answer.json()["usage"]["input_tokens"]
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": n_tokens}
    for choice in ({"type": "web_search"}, {"type": "function", "name": "read"}):
        assert client.post(PATH, json=body | {"tool_choice": choice}).status_code == 400


def test_functions_in_a_namespace_are_called_by_both_names(client, template, prompts):
    template(HERMES)
    chosen = {"type": "function", "name": "read", "namespace": "mcp__files__"}
    more = {"tools": CODEX_TOOLS, "tool_choice": chosen, "max_output_tokens": 200, "seed": 1}
    whole = ask(client, **more)
    (call,) = whole["output"]
    assert (call["namespace"], call["name"]) == ("mcp__files__", "read")
    assert "agents__spawn" in prompts[-1]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "it says so"}
    answered(client, PATH, input=[USER, call, result], max_output_tokens=1)
    assert '"name": "mcp__files__read"' in prompts[-1]
    assert prompts[-1].endswith("<|tool|>it says so<|end|><|assistant|>")


def test_what_tools_of_others_did_is_told_or_left_out(client, template, prompts):
    template(HERMES)
    action = {"type": "exec", "command": ["ls", "-l"]}
    items = [
        USER,
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}},
        {"type": "local_shell_call", "call_id": "c1", "status": "completed", "action": action},
        {"type": "local_shell_call_output", "call_id": "c1", "output": "total 0"},
        {"type": "mcp_call", "id": "m1", "name": "roll", "arguments": "{}", "output": "4"},
        {"type": "compaction", "encrypted_content": "gAAA"},
        {"type": "item_of_tomorrow", "anything": [1]},
    ]
    answer = answered(client, PATH, input=items, max_output_tokens=1)
    told = warnings(answer)
    assert all(kind in told for kind in ("web_search_call", "compaction", "item_of_tomorrow"))
    assert "local_shell" not in told
    assert '{"name": "local_shell", "arguments": {"type": "exec", "command":' in prompts[-1]
    assert "<|tool|>total 0<|end|>" in prompts[-1]
    assert "<|tool|>4<|end|><|assistant|>" in prompts[-1]
    name = answer.json()["id"]
    kept = client.get(f"{PATH}/{name}/input_items?order=asc").json()["data"]
    assert [item["type"] for item in kept] == [item["type"] for item in items]
    prompt = prompts[-1]
    answered(client, PATH, input="more", previous_response_id=name, max_output_tokens=1)
    assert prompts[-1].startswith(prompt.removesuffix("<|assistant|>"))


def test_a_conversation_is_made_shorter(client, template, prompts):
    template(HERMES)
    call = {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "many words"}
    items = [USER, call, output, {**USER, "content": "and then?"}]
    body = {"model": "toy", "instructions": "be brief", "max_output_tokens": 9, "seed": 3}
    shorter = answered(client, f"{PATH}/compact", input=items, **body).json()
    CompactedResponse.model_validate(shorter | {"output": shorter["output"][-1:]})
    assert "many words<|end|><|user|>and then?" in prompts[-1]
    assert "Summarize this conversation" in prompts[-1]
    kinds = [item["type"] for item in shorter["output"]]
    assert kinds == ["message", "message", "compaction"]
    answered(client, PATH, input=[*shorter["output"], USER], **body)
    told = prompts[-1]
    assert told.startswith("<|system|>be brief<|end|><|user|>hi<|end|><|user|>and then?<|end|>")
    assert "A summary of the conversation before:\n" in told
    assert "many words" not in told
    assert client.post(f"{PATH}/compact", json={"model": "toy"}).status_code == 400


@pytest.mark.parametrize("path", [CHAT, "/api/chat", "/tokenize", "/apply-template"])
def test_tools_of_others_are_left_out_in_every_dialect(client, template, path):
    template(HERMES)
    tools = [{"type": "web_search"}, {"type": "function", "function": {"name": "now"}}]
    body = {"messages": HELLO, "tools": tools, "max_tokens": 1, "stream": False}
    body["options"] = {"num_predict": 1}
    assert "web_search" in warnings(answered(client, path, **body))


def test_blocks_and_tools_of_others_in_messages(client, template, prompts):
    template(HERMES)
    document = {"type": "text", "media_type": "text/plain", "data": "Once upon a time."}
    found = {"type": "search_result", "source": "https://a/b", "title": "A page"}
    found["content"] = [{"type": "text", "text": "of words"}]
    results = [{"type": "tool_reference", "tool_name": "later"}, found]
    told = [
        {"type": "document", "source": document, "title": "Tales"},
        found,
        {"type": "text", "text": "hi"},
    ]
    said = [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        {"type": "text", "text": "I looked."},
        {"type": "tool_use", "id": "t1", "name": "now", "input": {}},
    ]
    given = [{"type": "tool_result", "tool_use_id": "t1", "content": results}]
    roles = zip(("user", "assistant", "user"), (told, said, given), strict=True)
    body = {
        "model": "toy",
        "messages": [{"role": role, "content": content} for role, content in roles],
        "tools": [
            {"type": "web_search_20250305", "name": "web_search"},
            {"name": "now", "input_schema": {"type": "object"}},
        ],
        "mcp_servers": [{"name": "x"}],
    }
    answer = answered(client, MESSAGES, **body, max_tokens=1)
    for name in ("web_search_20250305", "server_tool_use", "web_search_tool_result", "mcp_servers"):
        assert name in warnings(answer)
    prompt = prompts[-1]
    assert "Document Tales:\nOnce upon a time." in prompt
    assert prompt.count("Search result A page (https://a/b):\nof words") == 2
    assert "Tool later\n" in prompt
    assert "I looked." in prompt
    counted = answered(client, f"{MESSAGES}/count_tokens", **body).json()["input_tokens"]
    usage = answer.json()["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]


@pytest.mark.parametrize("text", [QWEN_35, GEMMA_2], ids=["Qwen 3.5", "Gemma 2"])
def test_orders_of_roles_that_agents_send(client, template, prompts, text):
    template(text)
    claude = {
        "model": "toy",
        "max_tokens": 1,
        "system": "You are an agent.",
        "messages": [*HELLO, {"role": "system", "content": "Agents there are."}],
    }
    answered(client, MESSAGES, **claude)
    words = ["You are an agent.", "hi", "Agents there are."]
    assert sorted(words, key=prompts[-1].index) == words
    codex = [
        {"type": "message", "role": role, "content": f"from {role} {i}"}
        for i, role in enumerate(("developer", "developer", "user", "user"))
    ]
    answered(client, PATH, input=codex, max_output_tokens=1)
    words = [item["content"] for item in codex]
    assert sorted(words, key=prompts[-1].index) == words
    said = ("Welcome", "hi", "one", "two", "hi")
    roles = ("assistant", "user", "assistant", "assistant", "user")
    chat = [{"role": role, "content": one} for role, one in zip(roles, said, strict=True)]
    answered(client, CHAT, messages=chat, max_tokens=1)
    assert tuple(re.findall("Welcome|hi|one|two", prompts[-1])) == said


def test_a_call_that_was_cut_can_be_told(client, template, prompts):
    template(QWEN_35)
    for cut, told in (('{"a": "x', "a=x"), ("", ""), ('{"a": 1, "b', "a=1"), ("x", "arguments=x")):
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": cut}}
        messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}, *HELLO]
        answered(client, CHAT, messages=messages, max_tokens=1)
        assert f"<function=f>{told}<|end|>" in prompts[-1], cut
        item = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": cut}
        items = [USER, {**item, "status": "incomplete"}, USER]
        answered(client, PATH, input=items, max_output_tokens=1)
        assert f"<function=f>{told}<|end|>" in prompts[-1], cut


def test_the_cache_finds_what_is_behind_the_name_of_a_session(client, template):
    template(HERMES)
    words = "You are an agent that helps with many things. " * 3

    def usage(number):
        header = f"x-anthropic-billing-header: cc_version=2.1.{number}; cch={number:05x};"
        system = [{"type": "text", "text": header}, {"type": "text", "text": words}]
        body = {"model": "toy", "system": system, "messages": HELLO}
        counted = answered(client, f"{MESSAGES}/count_tokens", **body).json()["input_tokens"]
        used = answered(client, MESSAGES, **body, max_tokens=1).json()["usage"]
        assert counted == used["input_tokens"] + used["cache_read_input_tokens"]
        return used

    first, second = usage(100), usage(20000)
    n_prompt = first["input_tokens"] + first["cache_read_input_tokens"]
    assert second["input_tokens"] + second["cache_read_input_tokens"] == n_prompt
    assert second["input_tokens"] <= 16


def test_a_message_begins_with_what_was_cached_of_its_prompt(client, template):
    template(HERMES)
    body = {"model": "toy", "max_tokens": 2, "messages": [{"role": "user", "content": "so " * 60}]}
    for _ in range(2):
        told = client.post(MESSAGES, json=body | {"stream": True}).text
    events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: ")]
    (begins,) = [e["message"]["usage"] for e in events if e["type"] == "message_start"]
    (ends,) = [e["usage"] for e in events if e["type"] == "message_delta"]
    assert begins["cache_read_input_tokens"] > 0
    for name in ("input_tokens", "cache_read_input_tokens"):
        assert begins[name] == ends[name]


def test_long_conversations_of_ollama_lose_their_oldest_messages(client, template, prompts):
    template(HERMES)
    messages = [{"role": "system", "content": "be brief"}]
    messages += [{"role": "user", "content": f"number {i}: " + "long " * 20} for i in range(12)]
    body = {"messages": messages, "stream": False, "options": {"num_predict": 1}}
    answer = answered(client, "/api/chat", **body)
    assert "oldest messages" in warnings(answer)
    assert "be brief" in prompts[-1]
    assert "number 11:" in prompts[-1]
    assert "number 0:" not in prompts[-1]
    assert client.post("/api/chat", json=body | {"truncate": False}).status_code == 400


def test_the_version_of_ollama_is_one_that_clients_take(client):
    version = client.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)  # Codex asks for it


def test_ollama_is_told_that_nothing_is_left(client):
    for keep_alive, reason in ((0, "unload"), ("0s", "unload"), (None, "load"), ("5m", "load")):
        for path in ("/api/generate", "/api/chat"):
            body = {"model": "toy", "keep_alive": keep_alive}
            assert answered(client, path, **body).json()["done_reason"] == reason


def test_odd_schemas_of_tools_lose_only_what_is_odd(client, template):
    template(HERMES)
    properties = {"a": {"type": "any"}, "b": {"type": "string", "enum": ["only"]}}
    parameters = {"type": "object", "properties": properties, "required": None}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    choice = {"type": "function", "function": {"name": "f"}}
    body = {"messages": HELLO, "tools": [tool], "tool_choice": choice, "max_tokens": 80}
    answer = answered(client, CHAT, **body)
    assert warnings(answer).startswith("tools[0].function.parameters: properties.a: the type")
    made = answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    found = re.search(r'"b": "([^"]*)', made)
    assert found is None or "only".startswith(found[1])
    schema = {"type": "object", "properties": properties | {"a": None}, "required": None}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answered(client, CHAT, messages=HELLO, response_format=form, max_tokens=1)


def test_what_a_form_of_calls_cannot_have_is_told_or_refused(client, template):
    template(QWEN_35)
    properties = {"a": {"type": "string", "pattern": r"a\b"}, "b": {"enum": ["x", "y"]}}
    parameters = {"type": "object", "properties": properties, "required": ["b"]}
    function = {"name": "f", "parameters": parameters}
    body = {"messages": HELLO, "tool_choice": "required", "max_tokens": 100, "seed": 3}
    tools = [{"type": "function", "function": function}]
    told = warnings(answered(client, CHAT, **body, tools=tools))
    assert told.startswith("tools[0].function.parameters: properties.a: not enforced: ")
    tools = [{"type": "function", "function": function | {"strict": True}}]
    refused = client.post(CHAT, json=body | {"tools": tools})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools[0].function.parameters"


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "schema": {"const": "so"}},
        {"type": "json_schema", "json_schema": {"const": "so"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "so"}}},
    ],
    ids=["beside the type", "without its name", "named"],
)
def test_a_schema_is_found_where_clients_put_it(client, form):
    answer = answered(client, CHAT, messages=HELLO, response_format=form, max_tokens=20)
    assert answer.json()["choices"][0]["message"]["content"] == '"so"'


def test_numbers_with_a_point_are_whole_where_they_are(client):
    body = {"prompt": "a", "max_tokens": 2.0, "n": 1.0, "seed": 3.0, "top_k": 4.0}
    plain = {"prompt": "a", "max_tokens": 2, "n": 1, "seed": 3, "top_k": 4}
    texts = [answered(client, "/v1/completions", **one).json()["choices"] for one in (body, plain)]
    assert texts[0] == texts[1]
    for bad in (1.5, True, "1"):
        assert client.post("/v1/completions", json=body | {"n": bad}).status_code == 400


def test_fields_that_are_not_known_are_named_whatever_they_say(client):
    for value in (0, False, "", [], 0.0, 7):
        answer = answered(client, CHAT, messages=HELLO, max_tokens=1, temprature=value)
        assert "temprature" in warnings(answer)
    answer = answered(client, CHAT, messages=HELLO, max_tokens=1, temprature=None, user="x")
    assert WARNING not in answer.headers
    options = {"num_predict": 1, "temprature": 0}
    answer = answered(client, "/api/chat", messages=HELLO, options=options, stream=False)
    assert "options.temprature" in warnings(answer)


def test_why_an_answer_stopped_is_told_as_vllm_tells_it(client):
    more = {"prompt": "a", "temperature": 0, "max_tokens": 9}
    (choice,) = answered(client, "/v1/completions", **more, return_token_ids=True).json()["choices"]
    assert choice["stop_reason"] is None
    token, text = choice["token_ids"][3], choice["text"]
    for stop, reason in (({"stop_token_ids": [token]}, token), ({"stop": [text[1]]}, text[1])):
        (choice,) = answered(client, "/v1/completions", **more, **stop).json()["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", reason)
        streamed = client.post("/v1/completions", json=more | stop | {"stream": True}).text
        assert f'"stop_reason":{json.dumps(reason)}' in streamed


def test_a_client_that_has_said_all_gets_its_answer_alone(server):
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": "a", "max_tokens": 3}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(head.encode() + body)
        sock.shutdown(socket.SHUT_WR)
        got = b""
        while more := sock.recv(65536):
            got += more
    assert got.startswith(b"HTTP/1.1 200 OK")


def test_the_catalogue_says_what_agents_look_for(client):
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["context_length"], model["max_model_len"]) == ("toy", 512, 512)
    assert model["architecture"]["input_modalities"] == ["text"]
    assert {"tools", "temperature", "response_format"} <= set(model["supported_parameters"])
    assert model["capabilities"]["function_calling"] is True
    assert model["capabilities"]["vision"] is False
    assert model["meta"]["n_ctx"] == 512
    headers = {"anthropic-version": "2023-06-01"}
    page = client.get("/v1/models", headers=headers).json()
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "toy", "toy")
    assert (page["data"][0]["type"], page["data"][0]["display_name"]) == ("model", "toy")
    assert client.get("/v1/models/toy", headers=headers).json() == page["data"][0]
    (studio,) = client.get("/api/v0/models").json()["data"]
    assert (studio["type"], studio["state"]) == ("llm", "loaded")
    assert (studio["loaded_context_length"], studio["capabilities"]) == (512, ["tool_use"])
    assert "tools" in client.get("/api/tags").json()["models"][0]["capabilities"]


def test_a_template_that_names_reasoning_is_told_of(client, template):
    template(HERMES + "{# </think> #}")
    (model,) = client.get("/v1/models").json()["data"]
    assert model["capabilities"]["reasoning"] is True
    assert "reasoning_effort" in model["supported_parameters"]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/completion"])
def test_how_much_of_a_prompt_is_read_is_told(client, template, path, monkeypatch):
    monkeypatch.setattr(delivery, "PROGRESS_S", 0.001)
    template(HERMES)
    text = f"{path} " + "long " * 60
    body = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    body |= {"max_tokens": 1, "n_predict": 1, "stream": True, "return_progress": True}
    told = answered(client, path, **body).text
    events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: {")]
    seen = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert seen, told
    assert seen[-1]["processed"] == seen[-1]["total"] > 60
    assert [one["processed"] for one in seen] == sorted({one["processed"] for one in seen})
    assert all(0 <= one["cache"] <= one["processed"] for one in seen)
    (last,) = [i for i, event in enumerate(events) if event.get("prompt_progress") == seen[-1]]
    content = ("content", "text", "delta")
    says = [i for i, event in enumerate(events) if "prompt_progress" not in event]
    assert any(name in json.dumps(events[i]) for i in says for name in content)
    assert last < says[-1]
    assert "prompt_progress" not in answered(client, path, **body | {"return_progress": False}).text


def test_an_answer_that_nobody_limits_fits_the_context(client):
    answer = answered(client, "/v1/completions", prompt=[5] * 511)
    assert answer.json()["usage"]["completion_tokens"] == 1
    said = {"prompt": [5] * 511, "max_tokens": 16}
    assert "which is 1" in warnings(answered(client, "/v1/completions", **said))
    assert client.post("/v1/completions", json={"prompt": [5] * 512}).status_code == 400
