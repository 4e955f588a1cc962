"""Reasoning, content and calls of the families that tell them apart, over a socket."""

import json
from dataclasses import replace

import httpx
import openai
import pytest

from lanewise.text.answers.harmony import TOKENS
from lanewise.text.chat_template import ChatTemplate
from toy_server import CONFIG, toy_server

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 4}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
DIGITS = {"guided_regex": "[0-9]{3}"}
# As gpt-oss has it, as far as it matters here.
HARMONY = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>"
    "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}"
    "{% if not loop.last or m.role != 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}{# analysis #}"
)
THINK = "{% for m in messages %}{{ m.content }}{% endfor %}{{ begun }}{# </think> #}"


@pytest.fixture(scope="module")
def server():
    with toy_server(replace(CONFIG, max_model_len=1024), more_special=TOKENS) as running:
        yield running


@pytest.fixture(scope="module")
def sdk(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def answers(sdk, **ask):
    """Reasoning, content, arguments and reason, whole and streamed, which agree."""
    body = {"model": "toy", "messages": HELLO, "max_tokens": 150, "temperature": 1.5, **ask}
    whole = sdk.chat.completions.create(**body).choices[0]
    reasoning, content, arguments, reason = "", "", "", None
    for event in sdk.chat.completions.create(**body, stream=True):
        (choice,) = event.choices
        extra = choice.delta.model_extra or {}
        assert extra.get("reasoning") == extra.get("reasoning_content")
        reasoning += extra.get("reasoning") or ""
        content += choice.delta.content or ""
        for call in choice.delta.tool_calls or ():
            arguments += call.function.arguments
        reason = choice.finish_reason or reason
    extra = whole.message.model_extra or {}
    assert reasoning == extra.get("reasoning_content", "") == extra.get("reasoning", "")
    assert content == (whole.message.content or "")
    assert arguments == "".join(call.function.arguments for call in whole.message.tool_calls or ())
    assert reason == whole.finish_reason
    assert not any(token in reasoning + content + arguments for token in TOKENS)
    return reasoning, content, arguments, reason


def test_harmony_whole_and_streamed(sdk, template):
    template(HARMONY)
    seen = [0, 0, 0]
    for seed in range(8):
        ask = {"seed": seed, "messages": [{"role": "user", "content": f"hi {seed}"}]}
        auto = answers(sdk, tools=TOOLS, **ask)
        called = answers(sdk, tools=TOOLS, tool_choice="required", max_tokens=250, **ask)
        assert (called[3] == "tool_calls") == called[2].endswith("}")
        digits = answers(sdk, extra_body=DIGITS, **ask)
        assert digits[1].isdigit() or digits[3] == "length"
        free = answers(sdk, max_tokens=20, **ask)
        for part in (auto, called, digits, free):
            seen = [n + bool(text) for n, text in zip(seen, part, strict=False)]
    assert all(seen), seen


def test_reasoning_before_and_within_the_prompt(sdk, template):
    template(THINK)
    ask = {"extra_body": DIGITS | {"chat_template_kwargs": {"begun": "<think>"}}}
    found = [answers(sdk, seed=seed, max_tokens=400, **ask) for seed in range(4)]
    assert all(reasoning for reasoning, *_ in found)
    assert all(content.isdigit() or not content for _, content, *_ in found)
    ask["extra_body"]["chat_template_kwargs"]["begun"] = "<think>\n\n</think>\n\n"
    reasoning, content, _, reason = answers(sdk, seed=1, **ask)
    assert (reasoning, len(content), reason) == ("", 3, "stop")


def test_reasoning_can_be_left_out(client, template):
    template(THINK)
    ask = {"messages": HELLO, "max_tokens": 20, "seed": 1}
    ask |= {"chat_template_kwargs": {"begun": "<think>"}}
    shown, hidden = (
        client.post(CHAT, json=ask | {"include_reasoning": include}).json()["choices"][0]["message"]
        for include in (True, False)
    )
    assert shown["reasoning"]
    usage = client.post(CHAT, json=ask).json()["usage"]
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] <= 20
    assert hidden == {"role": "assistant", "content": shown["content"], "refusal": None}


def test_reasoning_has_a_budget(sdk, template):
    template(THINK)
    begun = {"chat_template_kwargs": {"begun": "<think>"}}
    for more in ({}, DIGITS):
        ask = {"extra_body": begun | more | {"thinking_token_budget": 7}, "seed": 3}
        reasoning, content, _, _ = answers(sdk, max_tokens=40, **ask)
        assert 0 < len(reasoning.encode()) <= 7 * 4
        assert content
        if more:
            assert content.isdigit()
            assert len(content) == 3


def test_its_client_ends_reasoning_while_it_is_written():
    keys = {"authorization": "Bearer first"}, {"authorization": "Bearer second"}
    with toy_server(
        api_keys=("first", "second"), chat_template=ChatTemplate({"default": THINK})
    ) as server:
        body = {"messages": HELLO, "max_tokens": 300, "seed": 3, "temperature": 1.5}
        body |= {"chat_template_kwargs": {"begun": "<think>"}, "stream": True}

        def control(answer, key):
            ask = {"id": answer, "action": "reasoning_end"}
            with httpx.Client(base_url=server.url, headers=key) as client:
                return client.post(f"{CHAT}/control", json=ask).json()

        def content(**more):
            """What the answer says after its reasoning is ended behind the first bit of it."""
            said, ended = "", False
            with (
                httpx.Client(base_url=server.url, headers=keys[0]) as client,
                client.stream("POST", CHAT, json=body | more) as stream,
            ):
                for line in stream.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    chunk = json.loads(line.removeprefix("data: "))
                    delta = chunk["choices"][0]["delta"]
                    said += delta.get("content") or ""
                    if delta.get("reasoning") and not ended:
                        assert not control(chunk["id"], keys[1])["success"]
                        ended = control(chunk["id"], keys[0])["success"]
                        server.runner.delay_s = 0.0
                        assert ended == ("reasoning_control" in more)
            over = control(chunk["id"], keys[0])
            assert not over["success"]
            assert "reasoning_control" in over["message"]
            return said

        assert not content(max_tokens=40)
        server.runner.delay_s = 0.01  # of a step: 300 of them before the client has spoken
        assert content(reasoning_control=True)


def test_the_effort_is_the_templates(client, server, template):
    template(HARMONY)

    def ask(**more):
        answer = client.post(CHAT, json={"messages": HELLO, "max_tokens": 1, **more})
        if answer.status_code == 200:
            return answer.json()["usage"]["prompt_tokens"]
        return answer.json()["error"]

    usual = ask()
    assert ask(reasoning_effort="low") == usual - len("medium") + len("low")
    assert ask(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "x"}) < usual - 3
    refused = ask(reasoning_effort="max")
    assert refused["param"] == "reasoning_effort"
    assert "'max'" in refused["message"]
    assert "low, medium, high" in refused["message"]
    assert ask(reasoning_effort="most")["param"] == "reasoning_effort"


def test_a_final_message_goes_on(sdk, template):
    template(HARMONY)
    messages = [*HELLO, {"role": "assistant", "content": "Well"}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    reasoning, content, *_ = answers(sdk, messages=messages, seed=1, max_tokens=4, extra_body=more)
    assert content
    assert not reasoning
