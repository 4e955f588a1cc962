"""The openai package, unmodified, against the bundled model."""

import asyncio

import openai
import pytest

from serving import lanewise_server

pytestmark = [pytest.mark.e2e, pytest.mark.native]

PROMPT = "The old man looked at the sea and"
MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]


@pytest.fixture(scope="module")
def sdk(url):
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def model(sdk):
    return sdk.models.list().data[0].id


def test_completions_whole_and_streamed(sdk, model):
    ask = {"model": model, "prompt": PROMPT, "max_tokens": 12, "seed": 7}
    whole = sdk.completions.create(**ask, n=2)
    events = list(sdk.completions.create(**ask, n=2, stream=True))
    streamed = ["", ""]
    for event in events:
        streamed[event.choices[0].index] += event.choices[0].text
    assert streamed == [choice.text for choice in whole.choices]
    assert streamed[0] != streamed[1]
    assert all(text.strip() for text in streamed)
    assert 12 < len(events) <= whole.usage.completion_tokens


def test_chat_whole_and_streamed(sdk, model):
    ask = {"model": model, "messages": MESSAGES, "max_tokens": 10, "seed": 7}
    whole = sdk.chat.completions.create(**ask)
    events = sdk.chat.completions.create(**ask, stream=True)
    text = "".join(event.choices[0].delta.content or "" for event in events)
    assert text == whole.choices[0].message.content
    assert text.strip()


def test_stop_string_cuts_the_text(sdk, model):
    ask = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    free = sdk.completions.create(**ask).choices[0].text
    stop = free.split()[3]
    cut = sdk.completions.create(**ask, stop=[stop]).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.text == free[: free.index(stop)]


def test_scores_are_the_same_bits_as_draws(sdk, model):
    """Prefill in one piece and decoding token by token give one distribution."""
    ask = {"model": model, "temperature": 0, "logprobs": 2}
    ids = {"return_token_ids": True}
    drawn = sdk.completions.create(prompt=PROMPT, max_tokens=10, extra_body=ids, **ask).choices[0]
    tokens = drawn.model_extra["prompt_token_ids"] + drawn.model_extra["token_ids"]
    scored = sdk.completions.create(prompt=tokens, max_tokens=0, echo=True, **ask).choices[0]
    n_drawn = len(drawn.logprobs.token_logprobs)
    assert scored.logprobs.token_logprobs[-n_drawn:] == drawn.logprobs.token_logprobs
    assert scored.logprobs.top_logprobs[-n_drawn:] == drawn.logprobs.top_logprobs
    for top, logprob in zip(
        drawn.logprobs.top_logprobs, drawn.logprobs.token_logprobs, strict=True
    ):
        assert max(top.values()) == logprob


async def texts_together(url: str, model: str, asks: list[dict]) -> list[str]:
    async def text(sdk: openai.AsyncOpenAI, ask: dict) -> str:
        stream = await sdk.completions.create(model=model, stream=True, **ask)
        return "".join([event.choices[0].text async for event in stream])

    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", timeout=300) as sdk:
        return await asyncio.gather(*[text(sdk, ask) for ask in asks])


def test_eight_streams_are_what_each_is_alone_on_any_server(sdk, model, url):
    """Nor do threads and the size of a step change a letter."""
    asks = [{"prompt": "word " * (5 * i) + PROMPT, "max_tokens": 8, "seed": i} for i in range(8)]
    alone = [sdk.completions.create(model=model, **ask).choices[0].text for ask in asks]
    assert asyncio.run(texts_together(url, model, asks)) == alone
    narrow = ["--threads", "2", "--max-step-tokens", "8", "--max-seqs", "8", "--kv-memory", "2MiB"]
    with lanewise_server(*narrow) as other:
        assert asyncio.run(texts_together(other, model, asks)) == alone
