"""Chat through the openai SDK and raw requests."""

import json
import math

import openai
import pytest

HELLO = [{"role": "user", "content": "hello there"}]


@pytest.fixture(scope="module")
def sdk(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def test_whole_and_streamed_answers_are_the_same(sdk):
    ask = {"model": "toy", "messages": HELLO, "max_tokens": 30, "seed": 5}
    whole = sdk.chat.completions.create(**ask)
    events = list(sdk.chat.completions.create(**ask, stream=True))
    assert events[0].choices[0].delta.role == "assistant"
    assert "".join(e.choices[0].delta.content for e in events) == whole.choices[0].message.content
    assert all(event.choices[0].delta.content for event in events[1:-1])
    assert events[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert whole.choices[0].message.role == "assistant"
    assert (whole.object, events[0].object) == ("chat.completion", "chat.completion.chunk")


def test_sdk_stream_helper_and_async_client_work(server):
    import asyncio

    async def ask() -> str:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as sdk:
            stream = await sdk.chat.completions.create(
                model="toy", messages=HELLO, stream=True, max_tokens=5, seed=1
            )
            return "".join([event.choices[0].delta.content or "" async for event in stream])

    assert asyncio.run(ask())


def test_choices_are_drawn_apart(sdk):
    ask = {"model": "toy", "messages": HELLO, "max_tokens": 10, "seed": 7}
    texts = [c.message.content for c in sdk.chat.completions.create(**ask, n=3).choices]
    assert len(set(texts)) == 3
    assert sdk.chat.completions.create(**ask).choices[0].message.content == texts[0]
    streamed = ["", "", ""]
    for event in sdk.chat.completions.create(**ask, n=3, stream=True):
        streamed[event.choices[0].index] += event.choices[0].delta.content
    assert streamed == texts


def test_log_probabilities_have_bytes_and_alternatives(sdk):
    ask = {"model": "toy", "messages": HELLO, "max_tokens": 12, "seed": 1}
    choice = sdk.chat.completions.create(**ask, logprobs=True, top_logprobs=2).choices[0]
    assert len(choice.logprobs.content) == 12
    for entry in choice.logprobs.content:
        assert math.isfinite(entry.logprob)
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
    plain = sdk.chat.completions.create(**ask, logprobs=True).choices[0]
    assert plain.logprobs.content[0].top_logprobs == []
    events = sdk.chat.completions.create(**ask, logprobs=True, top_logprobs=2, stream=True)
    streamed = [e.choices[0].logprobs.content[0] for e in events if e.choices[0].logprobs]
    assert streamed == choice.logprobs.content


def test_template_writes_the_prompt(client, server):
    messages = [
        {"role": "developer", "content": "be  brief "},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "<|assistant|> is text here"},
    ]
    ask = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
    choice = client.post("/v1/chat/completions", json=ask).json()["choices"][0]
    text = server.state.tokenizer.decode(choice["prompt_token_ids"], skip_special=False)
    assert text == (
        "<s><|system|>be  brief</s><|user|>a\nb</s><|assistant|></s>"
        "<|user|><|assistant|> is text here</s><|assistant|>"
    )
    special = server.state.tokenizer.encode("<|assistant|>", add_bos=False, parse_special=True)
    assert choice["prompt_token_ids"].count(special[0]) == 2
    counted = client.post("/tokenize", json={"messages": messages}).json()
    assert counted["tokens"] == choice["prompt_token_ids"]


def test_last_message_can_be_continued(client, server):
    messages = [*HELLO, {"role": "assistant", "content": "well, "}]
    ask = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
    choice = client.post(
        "/v1/chat/completions", json={**ask, "continue_final_message": True}
    ).json()["choices"][0]
    text = server.state.tokenizer.decode(choice["prompt_token_ids"], skip_special=False)
    assert text == "<s><|user|>hello there</s><|assistant|>well,"


def test_answer_may_fill_the_context_when_no_length_is_given(client):
    body = {"messages": HELLO, "ignore_eos": True, "seed": 1}
    answer = client.post("/v1/chat/completions", json=body).json()
    assert answer["usage"]["total_tokens"] == 512
    assert answer["choices"][0]["finish_reason"] == "length"
    long = [{"role": "user", "content": "x" * 600}]
    error = client.post("/v1/chat/completions", json={"messages": long}).json()["error"]
    assert error["code"] == "context_length_exceeded"


def test_max_completion_tokens_is_the_newer_name(client):
    body = {"messages": HELLO, "max_completion_tokens": 3, "ignore_eos": True}
    answer = client.post("/v1/chat/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == 3


def test_stream_is_what_the_standard_says(client):
    body = {
        "messages": HELLO,
        "max_tokens": 2,
        "seed": 1,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True, "include_obfuscation": False},
    }
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        raw = response.read().decode()
    events = raw.split("\n\n")
    assert events.pop() == ""
    assert events.pop() == "data: [DONE]"
    assert all(event.startswith("data: {") for event in events)
    parsed = [json.loads(event[6:]) for event in events]
    assert len({event["id"] for event in parsed}) == 1
    assert [len(event["choices"]) for event in parsed] == [1, 1, 1, 0]
    assert [event["usage"] is None for event in parsed] == [True, True, True, False]
