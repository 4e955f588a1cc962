"""What leaves on the wire: one thing in a chunk, none empty, calls whole, and no long silence."""

import json
from dataclasses import replace

import pytest

from lanewise.api.generation import delivery
from lanewise.text.chat_template import ChatTemplate
from toy_server import CONFIG, toy_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris, Texas"]}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
CALL = {"messages": HELLO, "tools": TOOLS, "tool_choice": "required", "max_tokens": 200, "seed": 1}
# What each family's template says of its calls; the rest of a template does not matter here.
FAMILIES = {
    "hermes": "{# tools #}<tool_call>",
    "mistral": "{# tools #}[TOOL_CALLS]",
    "llama": '{# tools #}"parameters": ',
    "qwen3-coder": "{# tools #}<tool_call><function=",
}
THINKING = "{# tools #}<tool_call>{# </think> #}"


@pytest.fixture(scope="module")
def server():
    with toy_server(replace(CONFIG, max_model_len=1024, n_blocks=128)) as running:
        yield running


@pytest.fixture(params=FAMILIES)
def family(request, server, monkeypatch):
    monkeypatch.setattr(
        server.state, "chat_template", ChatTemplate({"default": FAMILIES[request.param]})
    )
    return request.param


def chunks_of(client, path, body):
    lines = client.post(path, json=body | {"stream": True}).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def is_full(choice):
    """Whether a choice of a chunk says anything."""
    if "text" in choice:
        return bool(choice["text"] or choice["finish_reason"])
    return any(choice["delta"].values()) or choice["finish_reason"] is not None


def folded(chunks):
    """The answers that the chunks of a stream make."""
    found = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            one = found.setdefault(choice["index"], {"calls": [], "reason": None})
            one["reason"] = choice["finish_reason"] or one["reason"]
            delta = dict(choice.get("delta") or {"content": choice.get("text")})
            for call in delta.pop("tool_calls", ()):
                if "id" in call:
                    one["calls"].append([call["id"], call["function"]["name"], ""])
                one["calls"][call["index"]][2] += call["function"]["arguments"]
            for key in ("content", "reasoning", "reasoning_content"):
                one[key] = one.get(key, "") + (delta.get(key) or "")
    return [one for _, one in sorted(found.items())]


def whole(client, path, body):
    """The same of an answer in one piece."""
    found = []
    for choice in client.post(path, json=body).json()["choices"]:
        said = choice.get("message") or {"content": choice["text"]}
        one = {"calls": [], "reason": choice["finish_reason"]}
        for call in said.get("tool_calls", ()):
            one["calls"].append([call["id"], *call["function"].values()])
        for key in ("content", "reasoning", "reasoning_content"):
            one[key] = said.get(key) or ""
        found.append(one)
    return found


def without_ids(answers):
    return [one | {"calls": [call[1:] for call in one["calls"]]} for one in answers]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_each_chunk_of_a_call_holds_one_entry_and_none_is_empty(client, family, choice):
    for seed in range(3):
        body = CALL | {"seed": seed, "tool_choice": choice, "n": 2, "temperature": 1.5}
        chunks = chunks_of(client, CHAT, body)
        first = [c for c in chunks if c["choices"][0]["delta"].get("role")]
        assert len(first) == 2
        for chunk in chunks[2:]:
            (choice_,) = chunk["choices"]
            assert is_full(choice_)
            assert len(choice_["delta"].get("tool_calls", [None])) == 1
            assert len([key for key in choice_["delta"] if key != "reasoning_content"]) <= 1
        begun = [
            call
            for chunk in chunks
            for call in chunk["choices"][0]["delta"].get("tool_calls", ())
            if "id" in call
        ]
        assert all(call["function"]["arguments"].startswith("{") for call in begun)
        if choice == "required":
            assert begun
        assert without_ids(folded(chunks)) == without_ids(whole(client, CHAT, body))


def test_streamed_and_whole_are_one_answer(client, server, monkeypatch):
    template = ChatTemplate({"default": THINKING})
    monkeypatch.setattr(server.state, "chat_template", template)
    for seed in range(12):
        body = {"seed": seed, "max_tokens": 40, "n": 3, "temperature": 1.2, "stop": ["e", "th"]}
        for path, ask in (
            (CHAT, {"messages": HELLO}),
            (CHAT, {"messages": HELLO, "tools": TOOLS, "max_tokens": 90}),
            (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 2}),
            (COMPLETIONS, {"prompt": ["ab", "cd"], "echo": True}),
            (COMPLETIONS, {"prompt": "ab", "include_stop_str_in_output": True}),
        ):
            chunks = chunks_of(client, path, body | ask)
            asked = body | ask
            assert without_ids(folded(chunks)) == without_ids(whole(client, path, asked))
            if "logprobs" not in ask:
                assert all(is_full(chunk["choices"][0]) for chunk in chunks[3 * (path == CHAT) :])


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_do_not_cut_arguments(client, family, stream):
    body = CALL | {"stop": ["Texas"]}
    chunks = chunks_of(client, CHAT, body)
    (answer,) = folded(chunks) if stream else whole(client, CHAT, body)
    assert answer["reason"] == "tool_calls"
    assert json.loads(answer["calls"][0][2]) == {"city": "Paris, Texas"}


def test_a_stream_is_not_silent_while_its_prompt_waits(monkeypatch):
    monkeypatch.setattr(delivery, "KEEP_ALIVE_S", 0.02)
    with toy_server() as server:
        server.runner.gate.clear()
        body = {"prompt": "abc", "max_tokens": 3, "seed": 1, "stream": True}
        with server.client.stream("POST", COMPLETIONS, json=body) as response:
            lines = (line for line in response.iter_lines() if line)
            assert [next(lines) for _ in range(3)] == [": keep-alive"] * 3
            server.runner.gate.set()
            rest = [line for line in lines if line != ": keep-alive"]
        assert rest[-1] == "data: [DONE]"
        assert all(line.startswith("data: ") for line in rest)
