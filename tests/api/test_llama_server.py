"""The endpoints of llama.cpp's server over a socket."""

import json
import re
from dataclasses import replace

import pytest

from toy import Script
from toy_server import CONFIG, toy_server

HELLO = [{"role": "user", "content": "hi"}]
ASK = {"prompt": "abc", "n_predict": 12, "seed": 3}
OPENAI = {"prompt": "abc", "max_tokens": 12, "seed": 3}
WHOLE_ONLY = ("content", "tokens", "timings", "completion_probabilities", "generation_settings")


@pytest.fixture(scope="module")
def server():
    with toy_server(replace(CONFIG, max_model_len=256)) as running:
        yield running


@pytest.fixture
def ask(client):
    """Answers, which are the same streamed and whole."""

    def answer(**body):
        whole = client.post("/completion", json=ASK | body)
        assert whole.status_code == 200, whole.text
        whole = whole.json()
        answers = whole if isinstance(whole, list) else [whole]
        with client.stream("POST", "/completion", json=ASK | body | {"stream": True}) as response:
            events = [json.loads(line[6:]) for line in response.iter_lines() if line]
        for index, one in enumerate(answers):
            *parts, last = [event for event in events if event["index"] == index]
            assert [part["stop"] for part in parts] == [False] * len(parts)
            assert all(part["content"] for part in parts)
            parts.append(last)
            assert "".join(part["content"] for part in parts) == one["content"]
            for name in ("tokens", "completion_probabilities"):
                told = [item for part in parts for item in part.get(name, ())]
                assert told == one.get(name, [])
            assert last["generation_settings"].pop("stream")
            assert not one["generation_settings"].pop("stream")
            assert last["generation_settings"] == one["generation_settings"]
            assert last["timings"].keys() == one["timings"].keys()
            for name in (*WHOLE_ONLY, "tokens_cached"):
                last.pop(name, None)
            assert last == {name: one[name] for name in last}
        return whole

    return answer


def test_a_completion(ask, client):
    answer = ask()
    openai = client.post("/v1/completions", json=OPENAI | {"return_token_ids": True}).json()
    assert answer["content"] == openai["choices"][0]["text"]
    assert answer["tokens"] == openai["choices"][0]["token_ids"]
    assert answer["stop_type"] == "limit"
    assert answer["tokens_predicted"] == answer["timings"]["predicted_n"] == 12
    assert answer["tokens_evaluated"] == openai["usage"]["prompt_tokens"]
    assert answer["generation_settings"]["n_ctx"] == 256
    assert answer["prompt"] == "<s>abc"


def test_ends(ask, server):
    assert ask(stop=["e", "a"], n_predict=-1)["stop_type"] in ("word", "eos", "limit")
    text = ask()["content"]
    cut = ask(stop=[text[-1]])
    assert (cut["stop_type"], cut["stopping_word"]) == ("word", text[-1])
    assert text[-1] not in cut["content"]
    ids = server.state.tokenizer.encode("a\nb\u2028", add_bos=False, parse_special=True)
    server.runner.script = Script([ids], min(server.state.tokenizer.eos_ids), 4)
    answer = ask(temperature=0)
    server.runner.script = None
    assert (answer["content"], answer["stop_type"]) == ("a\nb\u2028", "eos")
    assert answer["has_new_line"]


def test_several_prompts(ask):
    first, second = ask(prompt=["abc", [97, 98]], n_cmpl=1)
    assert first["content"] == ask()["content"]
    assert second["prompt"] == "ab"
    assert ask(prompt={"prompt_string": "abc"})["content"] == first["content"]
    assert [one["index"] for one in ask(n_cmpl=3)] == [0, 1, 2]


def test_forms_and_probabilities(ask, client):
    assert re.fullmatch("[ab]{3}", ask(grammar="root ::= [ab] [ab] [ab]")["content"])
    assert json.loads(ask(json_schema={"enum": [{"a": 1}]})["content"]) == {"a": 1}
    answer = ask(n_probs=2)
    assert len(answer["completion_probabilities"]) == 12
    first = answer["completion_probabilities"][0]
    assert first["id"] == answer["tokens"][0]
    assert len(first["top_logprobs"]) == 2
    biased = ask(logit_bias=[[97, 100], ["98", False]])
    assert set(biased["content"]) == {"a"}
    openai = client.post("/v1/completions", json=OPENAI | {"logit_bias": {"97": 100}}).json()
    assert biased["content"] == openai["choices"][0]["text"]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["eA=="]}}, "multimodal_data"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"logit_bias": [[5, 1], ["word", 1]]}, "logit_bias[1]"),
        ({"logit_bias": [[10**4000, 1]]}, "logit_bias[0]"),
        ({"logit_bias": {"5": 101}}, "logit_bias[0]"),
        ({"logit_bias": [[5]]}, "logit_bias[0]"),
        ({"lora": [{"id": 0, "scale": 1.0}]}, "lora"),
        ({"prompt": "x" * 300, "n_predict": 1}, "maximum context length"),
    ],
)
def test_refusals(client, body, names):
    answer = client.post("/completion", json=ASK | body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert names in error["message"]
    assert error["code"] == 400


def test_what_is_not_done_is_told(client):
    body = ASK | {"mirostat": 0, "dry_multiplier": 0.8, "samplers": [], "cache_prompt": False}
    told = client.post("/completion", json=body).headers.get_list("x-lanewise-warning")
    assert [text.split(":")[0] for text in told] == ["dry_multiplier"]


def test_tokens(client):
    made = client.post("/tokenize", json={"content": "hé</s>"}).json()
    assert made["tokens"][:3] == [104, 195, 169]
    assert len(made["tokens"]) == 4
    plain = client.post("/tokenize", json={"content": "</s>", "parse_special": False}).json()
    assert len(plain["tokens"]) == 4
    pieces = {"content": "hé", "with_pieces": True, "add_special": True}
    pieces = client.post("/tokenize", json=pieces).json()["tokens"]
    assert [piece["piece"] for piece in pieces] == ["<s>", "h", [195], [169]]
    assert client.post("/detokenize", json={"tokens": [104, 195, 169]}).json()["content"] == "hé"
    assert client.post("/tokenize", json={"content": "a", "prompt": "b"}).status_code == 400


def test_the_template_is_applied(client, server):
    body = {"messages": [{"role": "user", "content": "a </s> b"}]}
    made = client.post("/apply-template", json=body).json()["prompt"]
    assert made == "<s><|user|>a </s> b</s><|assistant|>"
    body["add_generation_prompt"] = False
    assert client.post("/apply-template", json=body).json()["prompt"].endswith("b</s>")
    refused = client.post("/apply-template", json={"messages": []})
    assert refused.json()["error"]["code"] == 400


def test_properties(client, server):
    props = client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 256
    assert props["total_slots"] == server.state.engine.config.max_seqs
    assert props["chat_template"] == server.state.chat_template.source()
    slots = client.get("/slots").json()
    assert len(slots) == props["total_slots"]
    assert not any(slot["is_processing"] for slot in slots)
    assert client.post("/embedding", json={"content": "a"}).status_code == 501


def test_slots_are_taken(client, server):
    n_slots = server.state.engine.config.max_seqs
    server.runner.delay_s = 0.02
    body = ASK | {"n_cmpl": n_slots, "n_predict": 200, "ignore_eos": True, "stream": True}
    try:
        with client.stream("POST", "/completion", json=body):
            server.wait_until(lambda: sum(map(busy, client.get("/slots").json())) == n_slots)
            assert client.get("/slots?fail_on_no_slot=1").status_code == 503
    finally:
        server.runner.delay_s = 0
    server.wait_until(lambda: client.get("/slots?fail_on_no_slot=1").status_code == 200)


def busy(slot):
    return slot["is_processing"]
