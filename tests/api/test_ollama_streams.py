"""What lines of Ollama's chat say together is the whole answer, and what OpenAI's form says."""

import json
import random

import pytest

from scripted_answers import FORMS, TOOLS, ids_of, scripted_server
from topics import cases
from toy import Script

CHAT = "/api/chat"
N_CONVERSATIONS = cases(6, 20)  # for each template


@pytest.fixture(scope="module")
def server():
    with scripted_server() as running:
        yield running


def lines_of(server, body):
    with server.client.stream("POST", CHAT, json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        *lines, last = map(json.loads, response.iter_lines())
    assert last["done"]
    assert last["message"] == {"role": "assistant", "content": ""}
    for line in lines:
        assert not line["done"]
        assert line.keys() <= {"model", "created_at", "message", "done", "logprobs"}
        message = line["message"]
        assert all(message[key] for key in message.keys() - {"content"}), "an empty part"
        told = message["content"] or message.keys() > {"role", "content"} or line.get("logprobs")
        assert told, "an empty line"
    return lines, last


def seen(lines, end):
    """All that lines say, as far as it is the same each time; ids of calls are drawn."""
    messages = [line["message"] for line in lines]
    calls = [call["function"] for one in messages for call in one.get("tool_calls", ())]
    return {
        "content": "".join(one["content"] for one in messages),
        "thinking": "".join(one.get("thinking", "") for one in messages),
        "calls": calls,
        "logprobs": [score for line in lines for score in line.get("logprobs", ())],
        "reason": end["done_reason"],
        "counts": (end["prompt_eval_count"], end["eval_count"]),
    }


def options(rng):
    fields = {"seed": rng.randrange(1000), "num_predict": 1000}
    if rng.random() < 0.3:
        fields["num_predict"] = rng.randrange(1, 120)
    if rng.random() < 0.3:
        fields["stop"] = rng.sample(["so", "}", "see", "</", "\n", "1"], rng.randrange(1, 3))
    return fields


def whole_calls(message):
    """The calls of an answer in OpenAI's form that are not cut, as Ollama has them."""
    made = []
    for call in message.get("tool_calls") or ():
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            continue
        name = call["function"]["name"]
        made.append({"index": len(made), "name": name, "arguments": arguments})
    return made


@pytest.mark.parametrize("form", FORMS)
def test_a_streamed_message_is_the_whole_one(server, tokenizer, template, form):
    text, make = FORMS[form]
    template(text)
    counts = dict.fromkeys(("content", "thinking", "calls", "length"), 0)
    for number in range(N_CONVERSATIONS):
        rng = random.Random(f"{form} {number}")
        answer, fields = ids_of(tokenizer, make(rng)), options(rng)
        messages = [{"role": "user", "content": f"hi {number}"}]
        tools = {} if form in ("no tools", "thinks") or rng.random() < 0.2 else {"tools": TOOLS}
        body = {"messages": messages, "options": fields, "stream": False, **tools}
        if rng.random() < 0.3:
            body |= {"logprobs": True, "top_logprobs": rng.randrange(3)}
        short = body | {"options": {"num_predict": 1}}
        n_prompt = server.client.post(CHAT, json=short).json()["prompt_eval_count"]
        server.runner.script = Script([answer], min(tokenizer.eos_ids), n_prompt)
        whole = server.client.post(CHAT, json=body).json()
        lines, last = lines_of(server, body)
        found = seen(lines, last)
        assert found == seen([whole], whole), (number, body)
        openai = {"messages": messages, "seed": fields["seed"], "stop": fields.get("stop"), **tools}
        openai["max_tokens"] = fields["num_predict"]
        (choice,) = server.client.post("/v1/chat/completions", json=openai).json()["choices"]
        server.runner.script = None
        assert found["content"] == (choice["message"]["content"] or "")
        assert found["thinking"] == choice["message"].get("reasoning", "")
        assert found["calls"] == whole_calls(choice["message"])
        for name in ("content", "thinking", "calls"):
            counts[name] += bool(found[name])
        counts["length"] += found["reason"] == "length"
    assert counts["length"] >= cases(0, 1), counts
    assert counts["content"] >= cases(1, 5), counts
    assert (counts["thinking"] >= cases(1, 2)) == (form not in ("no tools", "mistral")), counts
    assert (counts["calls"] >= cases(1, 3)) == (form not in ("no tools", "thinks")), counts
