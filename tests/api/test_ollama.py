"""Ollama's API over a socket: the same answer streamed and whole, and errors its clients read."""

import json
from dataclasses import replace

import pytest

from toy import Script
from toy_server import CONFIG, toy_server

HELLO = [{"role": "user", "content": "hi"}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 4}}}
WEATHER = {"name": "weather", "parameters": {**CITY, "required": ["city"]}}
TOOLS = [{"type": "function", "function": WEATHER}]
CALLS = "{{ tools | tojson }}<tool_call>{% for m in messages %}{{ m.content }}{% endfor %}"
THINK = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if thinking %}<think>{% else %}<think></think>{% endif %}"
)
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


@pytest.fixture(scope="module")
def server():
    with toy_server(replace(CONFIG, max_model_len=1024, n_blocks=128)) as running:
        yield running


@pytest.fixture
def ask(client, server):
    """An answer, which is the same streamed and whole; its lines joined."""

    def answer(path, script=None, **body):
        body = {"model": "toy", "options": {"seed": 1, "num_predict": 9}, **body}
        server.runner.script = None
        if script is not None:
            short = client.post(path, json=body | {"stream": False, "options": {"num_predict": 1}})
            n_prompt = short.json()["prompt_eval_count"]
            ids = server.state.tokenizer.encode(script, add_bos=False, parse_special=False)
            end = min(server.state.tokenizer.eos_ids)
            server.runner.script = Script([ids], end, n_prompt)
        whole = client.post(path, json=body | {"stream": False})
        assert whole.status_code == 200, whole.text
        whole = whole.json()
        with client.stream("POST", path, json=body) as response:
            assert response.headers["content-type"] == "application/x-ndjson"
            lines = [json.loads(line) for line in response.iter_lines()]
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        assert all(said(line) or line.get("logprobs") for line in lines[:-1])
        streamed = lines[-1] | joined(lines)
        for name in TIMES:
            assert isinstance(streamed.pop(name), int)
            assert whole.pop(name) >= 0
        streamed["created_at"] = whole["created_at"]
        for line in (streamed, whole):  # ids of calls are drawn
            for call in line.get("message", {}).get("tool_calls", ()):
                assert call.pop("id")
        assert streamed == whole
        return whole

    yield answer
    server.runner.script = None


def said(line):
    message = line.get("message", line)
    return message.get("response") or any(
        message.get(name) for name in ("content", "thinking", "tool_calls")
    )


def joined(lines):
    """What all lines say together, as one line would."""
    made = {}
    if scores := [score for line in lines for score in line.get("logprobs", ())]:
        made["logprobs"] = scores
    parts = [line.get("message", line) for line in lines]
    texts = ("content", "thinking", "response")
    message = {name: "".join(part.get(name, "") for part in parts) for name in texts}
    message = {name: text for name, text in message.items() if text or name in parts[-1]}
    if calls := [call for part in parts for call in part.get("tool_calls", ())]:
        message["tool_calls"] = calls
    if "message" in lines[0]:
        message = {"message": message | {"role": "assistant"}}
    return made | message


def test_a_conversation(ask, client):
    answer = ask("/api/chat", messages=HELLO)
    assert answer["message"]["content"]
    assert (answer["eval_count"], answer["done_reason"]) == (9, "length")
    openai = {"messages": HELLO, "seed": 1, "max_tokens": 9}
    openai = client.post("/v1/chat/completions", json=openai).json()
    assert answer["message"]["content"] == openai["choices"][0]["message"]["content"]
    assert answer["prompt_eval_count"] == openai["usage"]["prompt_tokens"]


def test_a_prompt_is_a_conversation_unless_it_is_raw(ask, client, template):
    chat = ask("/api/chat", messages=[{"role": "system", "content": "be"}, *HELLO])
    made = ask("/api/generate", prompt="hi", system="be")
    assert made["response"] == chat["message"]["content"]
    assert made["prompt_eval_count"] == chat["prompt_eval_count"]
    raw = ask("/api/generate", prompt="hi", raw=True)
    openai = client.post(
        "/v1/completions", json={"prompt": "hi", "seed": 1, "max_tokens": 9}
    ).json()
    assert raw["response"] == openai["choices"][0]["text"]
    template(None)  # a model without one continues the text
    assert ask("/api/generate", prompt="hi")["response"] == raw["response"]


CALLED = 'Look: <tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>'
AGAIN = '\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bari"}}\n</tool_call>'


def test_calls_come_whole(ask, template):
    template(CALLS)
    options = {"num_predict": 400, "temperature": 0}
    more = {"messages": HELLO, "tools": TOOLS, "options": options}
    answer = ask("/api/chat", CALLED + AGAIN, **more)
    functions = [call["function"] for call in answer["message"]["tool_calls"]]
    assert [one["arguments"] for one in functions] == [{"city": "Rom"}, {"city": "Bari"}]
    assert [one["index"] for one in functions] == [0, 1]
    assert answer["message"]["content"].strip() == "Look:"
    assert answer["done_reason"] == "stop"
    options["num_predict"] = len(CALLED + AGAIN) - 20  # the second is cut
    answer = ask("/api/chat", CALLED + AGAIN, **more)
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["arguments"] == {"city": "Rom"}
    assert answer["done_reason"] == "length"


def test_reasoning(ask, template):
    template(THINK)
    options = {"num_predict": 400, "temperature": 0}
    more = {"script": "I wonder</think>So", "options": options}
    thought = ask("/api/chat", messages=HELLO, think=True, **more)
    assert (thought["message"]["thinking"], thought["message"]["content"]) == ("I wonder", "So")
    hidden = ask("/api/chat", messages=HELLO, think=False, **more)
    assert hidden["message"] == {"role": "assistant", "content": "I wonder</think>So"}
    made = ask("/api/generate", prompt="hi", think=True, **more)
    assert (made["thinking"], made["response"]) == ("I wonder", "So")


def test_line_breaks_of_other_alphabets_break_no_line(ask):
    text = "a\u2028b\u2029c\x85d\n\re"
    options = {"num_predict": 99, "temperature": 0}
    assert ask("/api/generate", text, prompt="hi", options=options)["response"] == text


def test_forms(ask, client):
    options = {"num_predict": 200, "temperature": 1.5, "seed": 3}
    answer = ask("/api/chat", messages=HELLO, format=WEATHER["parameters"], options=options)
    assert list(json.loads(answer["message"]["content"])) == ["city"]
    answer = ask("/api/generate", '{"a": [1]}', prompt="hi", format="json", options=options)
    assert json.loads(answer["response"]) == {"a": [1]}
    refused = client.post("/api/chat", json={"messages": HELLO, "format": "xml"})
    assert refused.status_code == 400
    assert "format" in refused.json()["error"]


def test_options(ask, client):
    def text(**options):
        return ask("/api/generate", prompt="hi", raw=True, options={"num_predict": 20} | options)

    same = {"prompt": "hi", "max_tokens": 20}
    for ours, theirs in (
        ({"seed": 5, "temperature": 1.5, "top_k": 40.0}, {"top_k": 40, "temperature": 1.5}),
        ({"seed": 5, "repeat_penalty": 1.8}, {"repetition_penalty": 1.8}),
        ({"seed": 5, "presence_penalty": 2, "min_p": 0.1}, {"presence_penalty": 2, "min_p": 0.1}),
        ({"seed": 5, "stop": ["e", "n"]}, {"stop": ["e", "n"]}),
    ):
        openai = client.post("/v1/completions", json=same | {"seed": 5} | theirs).json()
        assert text(**ours)["response"] == openai["choices"][0]["text"]
    for n in (-2, -1, 5000):  # all of the context that is left
        rest = text(num_predict=n, temperature=0.5, seed=1)
        n_tokens = rest["prompt_eval_count"] + rest["eval_count"]
        assert n_tokens == 1024 or rest["done_reason"] == "stop"


def test_an_effort_that_the_model_lacks(client, template):
    template("<|start|>{{ messages }}<|channel|>analysis<|message|>")
    refused = client.post("/api/chat", json={"messages": HELLO, "think": "max"})
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("think: 'max'")


def test_what_is_not_done_is_told(client):
    options = {"num_predict": 1, "num_gpu": 1, "mirostat": 0, "typical_p": 0.5, "tokens": 3}
    answer = client.post("/api/chat", json={"messages": HELLO, "options": options})
    told = answer.headers.get_list("x-lanewise-warning", split_commas=False)
    assert [text.split(":")[0] for text in told] == ["options.typical_p", "options.tokens"]
    taken = {"num_ctx": 4096, "num_predict": 1}
    capped = client.post("/api/chat", json={"messages": HELLO, "options": taken})
    assert capped.status_code == 200
    told = capped.headers["x-lanewise-warning"]
    assert all(word in told for word in ("options.num_ctx", "4096", "1024"))
    taken["num_ctx"] = 1024
    fits = client.post("/api/chat", json={"messages": HELLO, "options": taken})
    assert (fits.status_code, fits.headers.get("x-lanewise-warning")) == (200, None)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"messages": [{"role": "user", "content": "a", "images": ["eA=="]}]}, "images"),
        ({"messages": [{"role": "nobody", "content": "a"}]}, "messages[0].role"),
        ({"messages": HELLO, "options": {"temperature": "hot"}}, "options.temperature"),
        ({"prompt": "x" * 1100, "raw": True}, "maximum context length"),
        ({"prompt": "a", "images": ["eA=="]}, "images"),
        ({"prompt": "a", "template": "{{ .Prompt }}"}, "template"),
        ({"prompt": "a", "suffix": "b"}, "insert"),
        ({"prompt": "a", "context": [1, 2]}, "context"),
        ({"prompt": "a", "raw": True, "system": "b"}, "system"),
    ],
)
def test_refusals(client, body, names):
    path = "/api/chat" if "messages" in body else "/api/generate"
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert names in answer.json()["error"]


def test_models(client):
    (model,) = client.get("/api/tags").json()["models"]
    assert model["name"] == model["model"] == "toy:latest"
    assert len(model["digest"]) == 64
    (running,) = client.get("/api/ps").json()["models"]
    assert running["context_length"] == 1024
    for name in ("toy", "toy:latest"):
        shown = client.post("/api/show", json={"model": name}).json()
        assert shown["capabilities"] == ["completion", "tools"]
        family = shown["model_info"]["general.architecture"]
        assert shown["model_info"][f"{family}.context_length"] == 1024
        answer = client.post("/api/generate", json={"model": name, "keep_alive": 0})
        assert answer.json()["done_reason"] == "unload"
        assert answer.json()["response"] == ""
        pulled = client.post("/api/pull", json={"model": name, "stream": False})
        assert pulled.json() == {"status": "success"}
    loaded = client.post("/api/chat", json={"model": "toy", "messages": []}).json()
    assert (loaded["message"]["content"], loaded["done_reason"]) == ("", "load")
    assert client.get("/api/version").json()["version"]


def test_other_models_are_not_here(client):
    for path in ("/api/chat", "/api/generate", "/api/show"):
        missing = client.post(path, json={"model": "other", "messages": HELLO, "prompt": "a"})
        assert missing.status_code == 404
        assert "not found" in missing.json()["error"]
    for method, path in (
        ("POST", "/api/pull"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/blobs/sha256:00"),
        ("POST", "/api/embed"),
    ):
        refused = client.request(method, path, json={"model": "other", "input": "a"})
        assert refused.status_code == 501, path
        assert path[:10] in refused.json()["error"] or "other" in refused.json()["error"]
    assert client.head("/api/blobs/sha256:00").status_code == 501
    for answer in (client.get("/api/nothing"), client.get("/api/chat")):
        assert isinstance(answer.json()["error"], str)


def test_who_reads_no_html_is_told_in_a_line(client):
    assert client.get("/").text.startswith("Ollama is running")
    assert client.head("/").status_code == 200
    assert "<html" in client.get("/", headers={"accept": "text/html,*/*;q=0.8"}).text


def test_results_of_calls_go_with_their_calls(client, template, server):
    """Mistral's templates look at ids; whoever sends none has them in the order of the calls."""
    template(
        "{{ tools }}{% for m in messages %}{{ m.role }}"
        "{% for c in m.tool_calls or [] %}{% set f = c.function %}"
        "[{{ c.id }} {{ f.name }} {{ f.arguments | tojson }}]{% endfor %}"
        "{{ m.tool_call_id }}={{ m.name }}={{ m.content }};{% endfor %}"
    )
    call = {"function": {"name": "weather", "arguments": {"city": "Rom"}}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "tool_name": "weather", "content": "hot"},
        {"role": "tool", "content": "wet"},
    ]
    server.runner.batches.clear()
    options = {"num_predict": 1}
    client.post("/api/chat", json={"messages": messages, "options": options, "stream": False})
    ids = [int(token) for batch in server.runner.batches for token in batch.token_ids]
    prompt = server.state.tokenizer.decode(ids)
    shown = [f'[{id_} weather {{"city": "Rom"}}]' for id_ in ("call00000", "call00001")]
    assert f"assistant{''.join(shown)}" in prompt
    assert "toolcall00000=weather=hot;toolcall00001=weather=wet;" in prompt


def test_reasoning_that_a_model_does_not_have_cannot_be_asked_for(client, template):
    chat = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "stream": False}
    for path, body in (("/api/chat", chat), ("/api/generate", {"prompt": "hi", "stream": False})):
        body = body | {"options": {"num_predict": 2}}
        for think in (True, "high"):
            answer = client.post(path, json=body | {"think": think})
            assert answer.status_code == 400
            assert answer.json() == {"error": '"toy" does not support thinking'}
        for think in (False, None):
            assert client.post(path, json=body | {"think": think}).status_code == 200
        template("{{ messages[0].content }}{# </think> #}")
        assert client.post(path, json=body | {"think": True}).status_code == 200
        template("{{ messages[0].content }}")
