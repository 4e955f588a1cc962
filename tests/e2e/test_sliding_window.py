"""The installed server with a windowed model and a cache that is shorter than its answers."""

import httpx
import pytest

from serving import lanewise_server, metric, wait_for
from tiny_models import tiny_model, write_hf

pytestmark = [pytest.mark.e2e, pytest.mark.native]

CONTEXT = 2048


def answer(url: str, prompt: list[int], n_tokens: int) -> list[int]:
    body = {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0.7, "seed": 4}
    body |= {"ignore_eos": True, "return_token_ids": True}
    reply = httpx.post(url + "/v1/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["token_ids"]


def test_a_context_longer_than_the_cache_is_served_from_its_window(tmp_path):
    model = tiny_model("mistral", sliding_window=40, max_position_embeddings=CONTEXT)
    path = str(write_hf(model, tmp_path / "model"))
    prompt = [2 + i * 37 % 250 for i in range(1000)]
    arguments = ("--model", path, "--threads", "1", "--max-step-tokens", "64")
    with lanewise_server(*arguments) as url:
        expected = answer(url, prompt, 900)
        roomy = metric(url, "lanewise_kv_blocks{")
    assert len(expected) == 900
    with lanewise_server(*arguments, "--kv-memory", "128KiB") as url:
        assert metric(url, "lanewise_kv_blocks{") * 32 < 1000 < roomy * 32
        assert answer(url, prompt, 900) == expected
        assert answer(url, [*prompt, *expected[:800]], 100) == expected[800:]
        assert metric(url, "vllm:num_preemptions_total") == 0
        wait_for(lambda: metric(url, "lanewise_kv_blocks_used") == 0, "blocks are given back")
