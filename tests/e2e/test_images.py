"""Images in: a tiny model that sees, as a server, and answers as transformers gives them."""

import base64
import json
from pathlib import Path

import openai
import pytest

from pictures import encoded, picture, png
from seeing_models import write_seeing_model
from serving import lanewise_server, metric

pytestmark = [pytest.mark.e2e, pytest.mark.native]

ANSWERS = json.loads((Path(__file__).parents[1] / "golden" / "images" / "answers.json").read_text())


@pytest.fixture(scope="module")
def url(_native_library, tmp_path_factory):
    model = write_seeing_model(tmp_path_factory.mktemp("models") / "seeing")
    with lanewise_server(str(model), "--threads", "1", "--kv-cache-dtype", "f32") as url:
        yield url


@pytest.fixture(scope="module")
def sdk(url):
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def data_url(width: int, height: int, seed: int) -> str:
    return "data:image/png;base64," + base64.b64encode(png(width, height, seed)).decode()


def messages_of(golden: dict) -> list[dict]:
    parts = [
        {"type": "image_url", "image_url": {"url": data_url(*one)}} for one in golden["pictures"]
    ]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": golden["asked"]}]}]


def ask(golden: dict, **more: object) -> dict:
    return {
        "model": "seeing",
        "messages": messages_of(golden),
        "max_tokens": len(golden["tokens"]),
        "temperature": 0,
        "extra_body": {"return_token_ids": True},
        **more,
    }


def tokens_of(answer) -> list[int]:
    return answer.choices[0].model_extra["token_ids"]


@pytest.mark.parametrize("golden", ANSWERS, ids=lambda golden: str(golden["pictures"]))
def test_answers_are_those_of_transformers(sdk, golden):
    whole = sdk.chat.completions.create(**ask(golden))
    assert tokens_of(whole) == golden["tokens"]
    assert whole.usage.prompt_tokens == golden["n_prompt"]
    events = sdk.chat.completions.create(**ask(golden, stream=True))
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == whole.choices[0].message.content


def test_an_image_that_was_seen_is_not_seen_again(url, sdk):
    golden = ANSWERS[0]
    first = sdk.chat.completions.create(**ask(golden))
    n_seen = metric(url, "lanewise_image_views_total")
    again = sdk.chat.completions.create(**ask(golden))
    assert metric(url, "lanewise_image_views_total") == n_seen  # its rows are in the KV cache
    assert tokens_of(again) == tokens_of(first)
    assert again.usage.prompt_tokens_details.cached_tokens > golden["n_prompt"] // 2
    turned = encoded(picture(*golden["pictures"][0]), "WEBP", lossless=True)
    url_of_webp = "data:image/webp;base64," + base64.b64encode(turned).decode()
    messages = messages_of(golden)
    messages[0]["content"][0]["image_url"]["url"] = url_of_webp
    same = sdk.chat.completions.create(**ask(golden) | {"messages": messages})
    assert tokens_of(same) == golden["tokens"]
    assert metric(url, "lanewise_image_views_total") == n_seen
