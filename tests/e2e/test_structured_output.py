"""Hundreds of schemas against the bundled model at high temperature: whatever ends is valid."""

import asyncio
import json
import re

import httpx
import jsonschema
import openai
import pytest

from json_schemas import UNSUPPORTED, random_schema
from serving import lanewise_server

pytestmark = [pytest.mark.e2e, pytest.mark.native]

N_SCHEMAS = 200
MAX_TOKENS = 300
AT_ONCE = 24


@pytest.fixture(scope="module")
def url(_native_library):
    # Blocks for a part of them: others wait, or give theirs up for a while.
    few_blocks = ["--kv-memory", "4MiB", "--max-seqs", str(AT_ONCE), "--served-model-name", "demo"]
    with lanewise_server("--threads", "1", *few_blocks) as url:
        yield url


def metric(url: str, name: str, **labels: str) -> float:
    text = httpx.get(url + "/metrics").text
    lines = [line for line in text.splitlines() if re.match(rf"{name}[{{ ]", line)]
    (line,) = [line for line in lines if all(f'{k}="{v}"' in line for k, v in labels.items())]
    return float(line.split()[-1])


async def answers(url: str, seeds: list[int], at_once: int) -> list[tuple[str, str]]:
    """Texts and finish reasons of answers to the schemas of these seeds."""
    gate = asyncio.Semaphore(at_once)

    async def ask(seed: int) -> tuple[str, str]:
        schema = {"name": "answer", "schema": random_schema(seed), "strict": True}
        async with gate:
            answer = await sdk.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": "Tell me about the sea. " * (seed % 5 + 1)}],
                response_format={"type": "json_schema", "json_schema": schema},
                temperature=1.5,
                max_tokens=MAX_TOKENS,
                seed=seed,
            )
        choice = answer.choices[0]
        return choice.message.content, choice.finish_reason

    options = {"base_url": url + "/v1", "api_key": "none", "timeout": 300, "max_retries": 0}
    async with openai.AsyncOpenAI(**options) as sdk:
        return await asyncio.gather(*map(ask, seeds))


def test_every_answer_that_ends_is_valid_and_the_same_as_alone(url):
    found = asyncio.run(answers(url, list(range(N_SCHEMAS)), AT_ONCE))
    ended = 0
    for seed, (text, reason) in enumerate(found):
        if reason == "stop":
            ended += 1
            jsonschema.validate(json.loads(text), random_schema(seed))
    assert ended >= 0.9 * N_SCHEMAS
    assert metric(url, "lanewise_forced_tokens_total") > N_SCHEMAS
    seeds = list(range(0, N_SCHEMAS, 10))
    assert asyncio.run(answers(url, seeds, at_once=1)) == found[::10]


@pytest.mark.parametrize("schema", UNSUPPORTED, ids=json.dumps)
def test_what_a_grammar_cannot_express_is_refused_and_counted(url, schema):
    before = metric(url, "lanewise_grammars_total", result="refused")
    answer = httpx.post(url + "/v1/completions", json={"prompt": "x", "guided_json": schema})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "guided_json"
    assert metric(url, "lanewise_grammars_total", result="refused") == before + 1
