"""Images in: tiny models that see, as servers, and answers as transformers gives them."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from lanewise import cli
from pictures import encoded, picture
from seeing_models import SEEING, write_seeing_model
from serving import lanewise_server, metric, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.native]

GOLDEN = Path(__file__).parents[1] / "golden" / "images" / "answers.json"
ANSWERS = json.loads(GOLDEN.read_text())
AHEAD = "gemma4_large", "gemma4_unified"  # tokens of an image, which see all of it
VIEWS = "lanewise_image_views_total"


@pytest.fixture(scope="module", params=list(SEEING))
def family(request):
    return request.param


@pytest.fixture(scope="module")
def url(_native_library, tmp_path_factory, family):
    model = write_seeing_model(tmp_path_factory.mktemp("models") / "seeing", family)
    # Steps so short that prompts are read in many: some begin or end within an image, but for
    # models that see all of one at once.
    steps = "--max-step-tokens", "80" if family in AHEAD else "7", "--max-seqs", "4"
    # Room for all that is asked: what is found again does not depend on the order of the answers.
    cache = "--kv-cache-dtype", "f32", "--kv-memory", "8MiB"
    with lanewise_server(str(model), "--threads", "1", *cache, *steps) as url:
        yield url


@pytest.fixture(scope="module")
def sdk(url):
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def messages_of(golden: dict, kind: str = "PNG", **options: object) -> list[dict]:
    parts = []
    for width, height, seed in golden["pictures"]:
        data = encoded(picture(width, height, seed), kind, **options)
        url = f"data:image/{kind.lower()};base64,{base64.b64encode(data).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return [{"role": "user", "content": [*parts, {"type": "text", "text": golden["asked"]}]}]


def ask(golden: dict, **more: object) -> dict:
    return {
        "model": "seeing",
        "messages": messages_of(golden),
        "max_tokens": len(golden["tokens"]),
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 5,
        "extra_body": {"return_token_ids": True},
        **more,
    }


def tokens_of(answer) -> list[int]:
    return answer.choices[0].model_extra["token_ids"]


def test_answers_are_those_of_transformers(url, sdk, family):
    goldens = [golden for golden in ANSWERS if golden["family"] == family]
    assert len(goldens) == 3
    with ThreadPoolExecutor(3) as pool:  # beside each other
        answers = list(pool.map(lambda one: sdk.chat.completions.create(**ask(one)), goldens))
    for golden, answer in zip(goldens, answers, strict=True):
        assert tokens_of(answer) == golden["tokens"]
        assert answer.usage.prompt_tokens == golden["n_prompt"]
        first = answer.choices[0].logprobs.content[0]
        found = [one.logprob for one in first.top_logprobs]
        assert found == pytest.approx(golden["top"], abs=2e-3)
    # Other files of the same pixels: no tower runs for them, and most is in the prefix cache.
    n_computed = metric(url, VIEWS)
    events = sdk.chat.completions.create(
        **ask(goldens[0], stream=True, messages=messages_of(goldens[0], "WEBP", lossless=True))
    )
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == answers[0].choices[0].message.content
    again = sdk.chat.completions.create(**ask(goldens[0]))
    assert tokens_of(again) == goldens[0]["tokens"]
    if family not in ("lfm2_vl", "qwen3_5"):  # whose states are found again only at ends of blocks
        assert again.usage.prompt_tokens_details.cached_tokens > goldens[0]["n_prompt"] // 2
        assert metric(url, VIEWS) == n_computed


def test_texts_alone_are_answered_as_well(sdk):
    messages = [{"role": "user", "content": "Say it."}]
    made = sdk.chat.completions.create(model="seeing", messages=messages, max_tokens=4)
    assert made.usage.completion_tokens > 0


@pytest.mark.usefixtures("_native_library")
def test_a_stored_prompt_is_that_of_its_own_images(tmp_path):
    """What was read back from disk is for the same image; another image is not mistaken for it."""
    model = write_seeing_model(tmp_path / "seeing", "idefics3")
    asked = "Say what this is, in words that are few and plain. " * 3
    bodies = [
        ask({"pictures": [[50, 40, seed]], "asked": asked, "tokens": [0] * 8}) for seed in (1, 2)
    ]
    store = "--kv-cache-dtype", "f32", "--kv-store", str(tmp_path / "store")

    def answers(*settings):
        with (
            lanewise_server(str(model), "--threads", "1", *settings) as url,
            openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as sdk,
        ):
            made = [sdk.chat.completions.create(**body) for body in bodies]
            return [(tokens_of(one), one.usage.prompt_tokens_details.cached_tokens) for one in made]

    expected = answers(*store[:2])
    assert expected[0] != expected[1]
    assert answers(*store) == expected
    again = answers(*store)
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in expected]
    assert all(found >= 5 * 32 for _, found in again)


@pytest.mark.usefixtures("_native_library")
def test_a_head_that_guesses_changes_no_answer_to_images(tmp_path):
    model = write_seeing_model(tmp_path / "seeing", "qwen3_5", head=True)
    goldens = [golden for golden in ANSWERS if golden["family"] == "qwen3_5"]
    settings = (
        "--threads",
        "1",
        "--kv-cache-dtype",
        "f32",
        "--max-step-tokens",
        "7",
        "--max-seqs",
        "2",
    )
    with (
        lanewise_server(str(model), "--draft", "mtp", *settings) as url,
        openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as sdk,
    ):

        def are_right() -> None:
            for golden in goldens:
                answer = sdk.chat.completions.create(**ask(golden))
                assert tokens_of(answer) == golden["tokens"]
                assert answer.usage.prompt_tokens == golden["n_prompt"]

        def has_guessed() -> bool:
            are_right()
            return metric(url, "vllm:spec_decode_num_draft_tokens_total") > 20

        wait_for(has_guessed, "guesses")
        are_right()


@pytest.mark.usefixtures("_native_library")
def test_a_packed_model_answers_the_same(tmp_path):
    model = write_seeing_model(tmp_path / "seeing", "qwen3_vl")
    assert cli.main(["pack", str(model), "-o", str(tmp_path / "packed")]) == 0
    golden = next(golden for golden in ANSWERS if golden["family"] == "qwen3_vl")
    settings = "--threads", "1", "--kv-cache-dtype", "f32", "--load", "map"
    with (
        lanewise_server(str(tmp_path / "packed"), *settings) as url,
        openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as sdk,
    ):
        answer = sdk.chat.completions.create(**ask(golden, model="packed"))
        assert tokens_of(answer) == golden["tokens"]
        assert answer.usage.prompt_tokens == golden["n_prompt"]
