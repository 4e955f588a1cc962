"""Prompts that begin alike, over HTTP: less is computed and the answers are the same."""

import asyncio

import httpx
import openai
import pytest

from toy_server import toy_server

PREFIX = [7 * i % 101 for i in range(140)]  # four blocks and a bit
SHARED = 128


@pytest.fixture(scope="module")
def sdk(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def ask(sdk, prompt, salt, **more):
    extra = {"cache_salt": salt, **more.pop("extra_body", {})}
    return sdk.completions.create(
        model="toy", prompt=prompt, max_tokens=12, seed=5, extra_body=extra, **more
    )


def cached(answer):
    return answer.usage.prompt_tokens_details.cached_tokens


def counter(server, name):
    text = httpx.get(server.url + "/metrics").text
    (line,) = [line for line in text.splitlines() if line.startswith(f"vllm:{name}_total")]
    return float(line.split()[-1])


def test_usage_says_what_the_cache_held_and_the_answer_is_the_same(sdk):
    first, again = (ask(sdk, [*PREFIX, 1, 2], "usage") for _ in range(2))
    assert (cached(first), first.usage.prompt_tokens) == (0, 142)
    assert cached(again) == 141  # all but the last token, which is always computed
    assert again.choices[0].text == first.choices[0].text
    stream = ask(sdk, [*PREFIX, 1, 2], "usage", stream=True, stream_options={"include_usage": True})
    *_, last = stream
    assert cached(last) == 141


def test_other_salts_and_other_beginnings_share_nothing(sdk):
    ask(sdk, PREFIX, "mine")
    assert cached(ask(sdk, PREFIX, "yours")) == 0
    assert cached(ask(sdk, [9, *PREFIX], "mine")) == 0
    assert cached(ask(sdk, PREFIX, "mine")) > 0


@pytest.mark.parametrize("salt", ["", 7, ["x"]])
def test_a_salt_is_a_text(server, salt):
    body = {"prompt": "x", "max_tokens": 1, "cache_salt": salt}
    answer = httpx.post(server.url + "/v1/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "cache_salt"


def test_prompts_that_come_together_are_computed_once(server):
    ends = [[number, 50, 51] for number in range(8)]

    async def post(client, end, salt):
        body = {"prompt": PREFIX + end, "max_tokens": 6, "seed": 1, "cache_salt": salt}
        answer = await client.post(server.url + "/v1/completions", json=body, timeout=60)
        return answer.json()["choices"][0]["text"]

    async def all_at_once():
        async with httpx.AsyncClient() as client:
            return await asyncio.gather(*[post(client, end, "together") for end in ends])

    async def alone(end):
        async with httpx.AsyncClient() as client:
            return await post(client, end, f"alone {end[0]}")

    before = counter(server, "prompt_tokens"), counter(server, "prefix_cache_hits")
    together = asyncio.run(all_at_once())
    assert counter(server, "prompt_tokens") - before[0] == 8 * 143
    hits = counter(server, "prefix_cache_hits") - before[1]
    assert 7 * SHARED <= hits <= 7 * len(PREFIX)
    assert together == [asyncio.run(alone(end)) for end in ends]


def test_answers_to_one_prompt_share_it(sdk):
    answer = ask(sdk, [*PREFIX, 3], "choices", n=3)
    alone = ask(sdk, [*PREFIX, 3], "one choice")
    assert cached(answer) == 0  # nothing was there before
    assert answer.choices[0].text == alone.choices[0].text


@pytest.mark.parametrize("share", [False, True])
def test_a_key_learns_nothing_of_what_another_has_sent(share):
    """200 probes: tokens computed, which is the time, and cached_tokens are those of new texts."""
    with toy_server(api_keys=("first", "second"), share_prefix_cache=share) as server:

        def tokens(key, prompt):
            def computed():
                return server.metric("vllm:prompt_tokens_by_source_total", source="local_compute")

            before, seen = computed(), server.metric("vllm:prompt_tokens_total")
            answer = server.client.post(
                "/v1/completions",
                json={"prompt": prompt, "max_tokens": 2, "seed": 5},
                headers={"authorization": f"Bearer {key}"},
            ).json()
            server.wait_until(
                lambda: server.metric("vllm:prompt_tokens_total") == seen + len(prompt)
            )
            n_computed = computed() - before
            text = answer["choices"][0]["text"]
            return n_computed, answer["usage"]["prompt_tokens_details"]["cached_tokens"], text

        told = 0
        for number in range(100):
            prompt = [1 + number // 10, 1 + number % 10, *PREFIX]
            of_first = tokens("first", prompt)
            assert tokens("first", prompt)[1] > 0  # a key finds what it has sent itself
            probed = tokens("second", prompt)
            fresh = tokens("second", [11 + number // 10, 1 + number % 10, *PREFIX])
            assert probed[2] == of_first[2]
            told += probed[:2] != fresh[:2]
        assert told == (100 if share else 0)
