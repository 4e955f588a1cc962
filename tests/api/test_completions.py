"""Completions through the openai SDK and raw requests."""

import json
import statistics

import openai
import pytest


@pytest.fixture(scope="module")
def sdk(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def test_whole_and_streamed_answers_are_the_same(sdk):
    ask = {"model": "toy", "prompt": "in the beginning", "max_tokens": 40, "seed": 5}
    whole = sdk.completions.create(**ask)
    events = list(sdk.completions.create(**ask, stream=True))
    assert "".join(event.choices[0].text for event in events) == whole.choices[0].text
    assert 20 < len(events) <= whole.usage.completion_tokens
    assert all(event.choices[0].text for event in events[:-1])
    assert [e.choices[0].finish_reason for e in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(event.usage is None for event in events)
    assert whole.object == events[0].object == "text_completion"
    assert whole.usage.prompt_tokens + whole.usage.completion_tokens == whole.usage.total_tokens


def test_seed_decides_the_answer(sdk):
    def text(**options):
        body = {"top_k": options.pop("top_k", None)}
        answer = sdk.completions.create(
            model="toy", prompt="x", max_tokens=20, extra_body=body, **options
        )
        return answer.choices[0].text

    assert text(seed=1) == text(seed=1)
    assert text(seed=1) != text(seed=2)
    assert text() != text()
    assert text(seed=-1) == text(seed=2**64 - 1)
    assert text(temperature=0, seed=1) == text(temperature=0, seed=2) == text(top_p=0)
    assert text(top_k=1) == text(temperature=0)


def test_stop_string_ends_the_answer_before_it(sdk, server):
    ask = {"model": "toy", "prompt": "stop here", "max_tokens": 60, "seed": 3}
    free = sdk.completions.create(**ask, extra_body={"ignore_eos": True}).choices[0].text
    stop = free[20:22]
    before = free[: free.index(stop)]
    stops = ["not in there", stop, "never", "nor this", "five of them"]
    stopped = sdk.completions.create(**ask, stop=stops, extra_body={"ignore_eos": True})
    assert stopped.choices[0].text == before
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage.completion_tokens < 60
    shown = sdk.completions.create(
        **ask,
        stop=stop,
        stream=True,
        extra_body={"ignore_eos": True, "include_stop_str_in_output": True},
    )
    assert "".join(event.choices[0].text for event in shown) == before + stop
    server.wait_until(lambda: server.metric("lanewise_kv_blocks_used") == 0)


def test_choices_of_one_prompt_differ_and_do_not_depend_on_other_prompts(sdk):
    ask = {"model": "toy", "max_tokens": 12, "seed": 9, "n": 2}
    both = sdk.completions.create(prompt=["one", "two"], **ask)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    alone = sdk.completions.create(prompt="two", **ask)
    assert [c.text for c in both.choices[2:]] == [c.text for c in alone.choices]
    assert alone.choices[0].text != alone.choices[1].text


@pytest.mark.parametrize("as_list", [False, True])
def test_token_ids_are_a_prompt(sdk, server, as_list):
    tokens = server.state.tokenizer.encode("the inner", add_bos=True, parse_special=True)
    ask = {"model": "toy", "max_tokens": 8, "seed": 0}
    by_text = sdk.completions.create(prompt="the inner", **ask)
    by_ids = sdk.completions.create(prompt=[tokens] if as_list else tokens, **ask)
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert by_ids.usage.prompt_tokens == by_text.usage.prompt_tokens


def test_the_best_of_several_answers_are_given(sdk):
    ask = {"model": "toy", "prompt": ["abc", "xyz"], "max_tokens": 9, "seed": 6}
    every = sdk.completions.create(**ask, n=5, logprobs=0)
    means = [statistics.mean(choice.logprobs.token_logprobs) for choice in every.choices]
    expected = []
    for first in (0, 5):
        best = sorted(range(first, first + 5), key=lambda i: -means[i])[:2]
        expected += [every.choices[i].text for i in best]
    echoed = sdk.completions.create(**ask, n=2, best_of=5, echo=True)
    assert [choice.text for choice in echoed.choices] == [
        prompt + text for prompt, text in zip(["abc"] * 2 + ["xyz"] * 2, expected, strict=True)
    ]
    answer = sdk.completions.create(**ask, n=2, best_of=5)
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert all(choice.logprobs is None for choice in answer.choices)
    assert answer.usage.completion_tokens == every.usage.completion_tokens


def test_log_probabilities_cover_every_token(sdk):
    ask = {"model": "toy", "prompt": "abc", "max_tokens": 10, "seed": 4, "logprobs": 3}
    choice = sdk.completions.create(**ask).choices[0]
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 10
    for token, logprob, top in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert top[token] == logprob <= max(top.values()) < 0
        assert 3 <= len(top) <= 4
    streamed = [event.choices[0].logprobs for event in sdk.completions.create(**ask, stream=True)]
    assert [one.token_logprobs[0] for one in streamed] == logprobs.token_logprobs
    assert [one.text_offset[0] for one in streamed] == logprobs.text_offset


def test_prompts_are_scored_as_evaluation_harnesses_ask(client, server):
    """Token ids, echo, log-probabilities and one token nobody looks at."""
    encode = server.state.tokenizer.encode
    prompts = [encode(text, add_bos=True, parse_special=True) for text in ("in the end", "x" * 90)]
    ask = {"prompt": prompts, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
    choices = client.post("/v1/completions", json=ask).json()["choices"]
    for prompt, choice in zip(prompts, choices, strict=True):
        logprobs = choice["logprobs"]
        for column in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert len(logprobs[column]) == len(prompt) + 1
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        assert logprobs["token_logprobs"][-1] == max(logprobs["top_logprobs"][-1].values())
    # The score of a token is what it gets when it is drawn.
    greedy = client.post("/v1/completions", json={**ask, "max_tokens": 9, "echo": False}).json()
    drawn = greedy["choices"][0]["logprobs"]["token_logprobs"]
    ids = client.post(
        "/v1/completions",
        json={**ask, "max_tokens": 9, "return_token_ids": True, "echo": False},
    ).json()["choices"][0]["token_ids"]
    again = {**ask, "prompt": prompts[0] + ids, "max_tokens": 0}
    scored = client.post("/v1/completions", json=again).json()["choices"][0]
    assert scored["logprobs"]["token_logprobs"][-len(ids) :] == drawn
    assert scored["finish_reason"] == "length"
    assert len(scored["logprobs"]["tokens"]) == len(prompts[0]) + len(ids)


def test_echo_shows_the_prompt_as_it_was_given(client):
    ask = {"prompt": "in the  end ü", "max_tokens": 0, "echo": True}
    answer = client.post("/v1/completions", json=ask).json()
    assert answer["choices"][0]["text"] == ask["prompt"]
    assert answer["usage"]["completion_tokens"] == 0
    with client.stream("POST", "/v1/completions", json={**ask, "stream": True}) as response:
        events = [line[6:] for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert [(c["text"], c["finish_reason"]) for c in choices] == [(ask["prompt"], "length")]


def test_usage_comes_only_when_asked_for(sdk):
    ask = {"model": "toy", "prompt": "abc", "max_tokens": 5, "seed": 1, "stream": True}
    events = list(sdk.completions.create(**ask, stream_options={"include_usage": True}))
    assert events[-1].choices == []
    assert events[-1].usage.completion_tokens == 5
    assert all(event.usage is None for event in events[:-1])
    running = sdk.completions.create(
        **ask, stream_options={"include_usage": True, "continuous_usage_stats": True}
    )
    assert [event.usage.completion_tokens for event in running] == [1, 2, 3, 4, 5, 5]


def test_a_character_of_several_tokens_is_never_cut(sdk):
    """Ids of single bytes: most of them complete no character, and have no event unless asked."""
    ask = {"model": "toy", "prompt": "é", "max_tokens": 60, "seed": 2, "stream": True}
    every = {"ignore_eos": True, "return_token_ids": True}
    texts = [
        [event.choices[0].text for event in sdk.completions.create(**ask, extra_body=body)]
        for body in (every, {"ignore_eos": True})
    ]
    assert len(texts[0]) == 60
    assert "" in texts[0]
    assert [text for text in texts[0] if text] == texts[1]


def test_biased_token_is_drawn_and_forbidden_ones_are_not(client, server):
    only = server.state.tokenizer.encode("z", add_bos=False, parse_special=False)[0]
    ask = {"prompt": "abc", "max_tokens": 6}
    biased = client.post("/v1/completions", json={**ask, "logit_bias": {str(only): 100}}).json()
    assert biased["choices"][0]["text"] == "zzzzzz"
    allowed = client.post("/v1/completions", json={**ask, "allowed_token_ids": [only]}).json()
    assert allowed["choices"][0]["text"] == "zzzzzz"


def test_min_tokens_holds_back_every_end(client, server):
    eos = next(iter(server.state.tokenizer.eos_ids))
    ask = {"prompt": "abc", "max_tokens": 9, "logit_bias": {str(eos): 100}}
    at_once = client.post("/v1/completions", json=ask).json()
    assert at_once["usage"]["completion_tokens"] == 1
    assert at_once["choices"][0]["finish_reason"] == "stop"
    assert at_once["choices"][0]["text"] == ""
    later = client.post("/v1/completions", json={**ask, "min_tokens": 4}).json()
    assert later["usage"]["completion_tokens"] == 5
    never = client.post("/v1/completions", json={**ask, "ignore_eos": True}).json()
    assert (never["usage"]["completion_tokens"], never["choices"][0]["text"]) == (9, "")
    shown = {**ask, "ignore_eos": True, "skip_special_tokens": False}
    assert client.post("/v1/completions", json=shown).json()["choices"][0]["text"] == "</s>" * 9


def test_nulls_and_foreign_fields_are_tolerated(client):
    nulls = dict.fromkeys(["stop", "logprobs", "seed", "n", "stream_options", "suffix", "best_of"])
    ask = {"prompt": "abc", "max_tokens": 2, **nulls, "user": "me", "store": True, "nonsense": 1}
    assert client.post("/v1/completions", json=ask).status_code == 200


def test_sixteen_tokens_when_nothing_is_said(client):
    answer = client.post("/v1/completions", json={"prompt": "abc", "ignore_eos": True}).json()
    assert answer["usage"]["completion_tokens"] == 16
