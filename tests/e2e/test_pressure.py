"""More tokens wanted than the KV cache holds: all get what they get alone, in no more memory."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from serving import lanewise_server, metric, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.native]

CLIENTS = 8
MAX_GROWTH = 12 << 20  # bytes: the cache's 4 MiB, buffers of larger steps, connections


def test_twice_as_many_tokens_as_blocks_hold():
    options = ("--threads", "1", "--kv-memory", "4MiB", "--max-model-len", "256")
    with lanewise_server(*options) as url:
        holds = 32 * metric(url, "lanewise_kv_blocks{")
        n_out = min(200, round(2 * holds / CLIENTS))
        bodies = [
            {
                "prompt": f"Chapter {i}. It was a dark night, and",
                "max_tokens": n_out,
                "ignore_eos": True,
                "seed": i,
            }
            for i in range(round(2 * holds / n_out) + 1)
        ]

        def ask(body: dict) -> str:
            answer = httpx.post(url + "/v1/completions", json=body, timeout=120)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["choices"][0]["text"])

        alone = [ask(body) for body in bodies]
        assert metric(url, "vllm:num_preemptions_total") == 0
        before, sizes = metric(url, "process_resident_memory_bytes"), []
        with ThreadPoolExecutor(len(bodies)) as pool:
            asked = [pool.submit(ask, body) for body in bodies]
            while not all(one.done() for one in asked):
                sizes.append(metric(url, "process_resident_memory_bytes"))
                time.sleep(0.05)
        assert [one.result() for one in asked] == alone
        assert max(sizes) - before < MAX_GROWTH
        assert metric(url, "vllm:num_preemptions_total") > 0
        wait_for(lambda: metric(url, "lanewise_kv_blocks_used") == 0, "blocks are given back")
