"""What a stream says, chunk by chunk, is what the same answer says in one piece.

The model's words are scripted: answers as six kinds of templates have them, with reasoning, calls
and text, cut in all ways. The bytes are read as they come, without a client's leniency.
"""

import json
import random

import pytest

from scripted_answers import FORMS, TOOLS, ids_of, plain, scripted_server
from topics import cases
from toy import Script

N_CONVERSATIONS = cases(6, 50)  # for each template


@pytest.fixture(scope="module")
def server():
    with scripted_server() as running:
        yield running


def tools_of(rng: random.Random) -> dict[str, object]:
    choice = rng.choice(["auto", "auto", "auto", "none", "required"])
    return {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": rng.random() < 0.8}


def options(rng: random.Random) -> dict[str, object]:
    fields: dict[str, object] = {"seed": rng.randrange(1000), "max_tokens": 1000}
    if rng.random() < 0.3:
        fields["max_tokens"] = rng.randrange(1, 120)
    if rng.random() < 0.3:
        fields["stop"] = rng.sample(["so", "}", "see", "</", "\n", "1"], rng.randrange(1, 3))
    if rng.random() < 0.3:
        fields |= {"logprobs": True, "top_logprobs": rng.randrange(4)}
    if rng.random() < 0.3:
        fields["n"] = 2 + rng.randrange(2)
    return fields


def asked(server, path: str, body: dict[str, object], scripts: list[list[int]]):
    """The answers in one piece, and the chunks of the same ones."""
    server.runner.script = None
    short = server.client.post(path, json=body | {"max_tokens": 1, "n": 1}).json()
    end = min(server.state.tokenizer.eos_ids)
    server.runner.script = Script(scripts, end, short["usage"]["prompt_tokens"])
    whole = server.client.post(path, json=body)
    assert whole.status_code == 200, whole.text
    more = {"stream": True, "stream_options": {"include_usage": True}}
    with server.client.stream("POST", path, json=body | more) as response:
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    *chunks, last = (json.loads(line[6:]) for line in lines[:-1])
    assert last["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks)
    answer = whole.json()
    assert {chunk["id"] for chunk in (*chunks, last)} == {last["id"]}
    assert set(answer) - {"usage"} >= set(last) - {"usage"}
    for one in (answer["usage"], last["usage"]):  # the second finds the first in the cache
        one.pop("prompt_tokens_details", None)
    assert answer["usage"] == last["usage"]
    return answer["choices"], chunks


class Message:
    """A message of the chunks of one choice; what no chunk may look like is refused."""

    def __init__(self) -> None:
        self.text, self.thinking = "", ""
        self.calls: list[dict] = []
        self.logprobs: list[dict] = []
        self.reason: str | None = None
        self._n_chunks = 0

    def add(self, choice: dict) -> None:
        delta = choice["delta"]
        self._n_chunks += 1
        assert self.reason is None, "nothing comes after the end"
        if self._n_chunks == 1:
            assert delta == {"role": "assistant", "content": ""}
            return
        self.reason = choice["finish_reason"]
        said = [key for key in ("content", "reasoning", "tool_calls") if key in delta]
        assert len(said) <= 1, "one thing in a chunk"
        scores = (choice["logprobs"] or {}).get("content") or []
        assert said or self.reason or scores, "an empty chunk"
        assert delta.get("reasoning") == delta.get("reasoning_content")
        self.logprobs += scores
        if said:
            assert delta[said[0]], "an empty text"
        self.text += delta.get("content") or ""
        self.thinking += delta.get("reasoning") or ""
        if calls := delta.get("tool_calls"):
            self._add_call(*calls)

    def _add_call(self, call: dict) -> None:
        if call["index"] == len(self.calls):
            assert call["id"]
            assert call["function"]["name"]
            self.calls.append(json.loads(json.dumps(call)))
            return
        assert call["index"] == len(self.calls) - 1
        assert call.keys() == {"index", "function"}
        assert call["function"].keys() == {"arguments"}
        assert call["function"]["arguments"]
        self.calls[-1]["function"]["arguments"] += call["function"]["arguments"]

    def seen(self) -> tuple[object, ...]:
        functions = [call["function"] for call in self.calls]
        return self.text, self.thinking, functions, self.logprobs, self.reason


def seen_whole(choice: dict) -> tuple[object, ...]:
    message = choice["message"]
    assert message.get("reasoning") == message.get("reasoning_content")
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    logprobs = (choice["logprobs"] or {}).get("content") or []
    text, thought = message["content"] or "", message.get("reasoning") or ""
    return text, thought, functions, logprobs, choice["finish_reason"]


@pytest.mark.parametrize("form", FORMS)
def test_a_streamed_message_is_the_whole_one(server, tokenizer, template, form):
    text, make = FORMS[form]
    template(text)
    counts = dict.fromkeys(("text", "thinking", "calls", "cut"), 0)
    for number in range(N_CONVERSATIONS):
        rng = random.Random(f"{form} {number}")
        scripts = [ids_of(tokenizer, make(rng)) for _ in range(3)]
        body = {"messages": [{"role": "user", "content": f"hi {number}"}], **options(rng)}
        if form not in ("no tools", "thinks") and rng.random() < 0.8:
            body |= tools_of(rng)
        choices, chunks = asked(server, "/v1/chat/completions", body, scripts)
        messages = [Message() for _ in choices]
        for chunk in chunks:
            [choice] = chunk["choices"]
            messages[choice["index"]].add(choice)
        for whole, message in zip(choices, messages, strict=True):
            assert message.seen() == seen_whole(whole), (number, body)
            counts["text"] += bool(message.text)
            counts["thinking"] += bool(message.thinking)
            counts["calls"] += bool(message.calls)
            counts["cut"] += message.reason == "length"
    assert counts["text"] >= cases(1, 10), counts
    assert counts["cut"] >= cases(1, 3), counts
    assert (counts["thinking"] >= cases(1, 5)) == (form not in ("no tools", "mistral")), counts
    assert (counts["calls"] >= cases(1, 10)) == (form not in ("no tools", "thinks")), counts


@pytest.mark.parametrize("form", ["hermes", "qwen3 coder"])
def test_a_tag_in_a_sentence_is_said_and_calls_nothing(server, tokenizer, template, form):
    template(FORMS[form][0])
    sentence = "The tag <tool_call> starts a call, as in <tool_call>\n\nso."
    ids = tokenizer.encode(sentence, add_bos=False, parse_special=False)
    body = {"messages": [{"role": "user", "content": "repeat"}], "tools": TOOLS, "max_tokens": 200}
    [choice], chunks = asked(server, "/v1/chat/completions", body, [ids])
    assert (choice["message"]["content"], choice["finish_reason"]) == (sentence, "stop")
    said = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert said == sentence


@pytest.mark.usefixtures("template")
def test_a_streamed_completion_is_the_whole_one(server, tokenizer):
    for number in range(N_CONVERSATIONS):
        rng = random.Random(number)
        scripts = [ids_of(tokenizer, plain(rng)) for _ in range(3)]
        body = {"prompt": f"once {number}", **options(rng), "echo": rng.random() < 0.2}
        if body.pop("logprobs", False):
            body["logprobs"] = body.pop("top_logprobs")
        choices, chunks = asked(server, "/v1/completions", body, scripts)
        texts, tokens = [""] * len(choices), [[] for _ in choices]
        reasons = [None] * len(choices)
        for chunk in chunks:
            [choice] = chunk["choices"]
            index, scores = choice["index"], choice["logprobs"]
            assert reasons[index] is None
            assert choice["text"] or choice["finish_reason"] or scores
            texts[index] += choice["text"]
            tokens[index] += [] if scores is None else scores["tokens"]
            reasons[index] = choice["finish_reason"]
        assert texts == [one["text"] for one in choices]
        assert reasons == [one["finish_reason"] for one in choices]
        assert tokens == [(one["logprobs"] or {"tokens": []})["tokens"] for one in choices]
