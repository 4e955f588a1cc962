"""Requests whose work once kept the event loop for seconds: others are served meanwhile."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from loop_clock import ClockedServer, clocked_server
from serving import metric, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.native]

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MAX_PAUSE_S = 1.0  # they take about 50 ms at most; each took 1.5 s to 28 s
MAX_KEPT = 128 << 20  # bytes, of the 500 MiB and more that 8 MB of text take
MESSAGES = b'{"messages":['
USER = {"role": "user", "content": "hi"}
ENDLESS = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def server() -> Iterator[ClockedServer]:
    with clocked_server() as running:
        yield running


def completion(**fields: object) -> bytes:
    return json.dumps({"prompt": "hi", "max_tokens": 2, **fields}).encode()


def listed(item: bytes, count: int, before: bytes) -> bytes:
    return before + b",".join([item] * count) + b"]}"


def with_arguments(text: str) -> bytes:
    function = {"name": "f", "arguments": text}
    calls = [{"id": "1", "type": "function", "function": function}]
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": calls}]
    return json.dumps({"messages": messages, "max_tokens": 2}).encode()


def cases() -> dict[str, tuple[str, bytes]]:
    stops = [f"stop {i}" for i in range(100_000)]
    return {
        "stop strings": (COMPLETIONS, completion(stop=stops, ignore_eos=True)),
        "one stop string": (COMPLETIONS, completion(stop="a" * 7_000_000)),
        "empty messages": (
            CHAT,
            listed(b'{"role":"user","content":""}', 150_000, b'{"messages":['),
        ),
        "messages of nothing": (CHAT, listed(b"{}", 2_700_000, MESSAGES)),
        "empty prompts": (COMPLETIONS, listed(b"[]", 2_700_000, b'{"prompt":[')),
        "messages without content": (CHAT, listed(b'{"role":"user"}', 300_000, MESSAGES)),
        "arguments": (CHAT, with_arguments("[" + "[]," * 2_300_000 + "[]]")),
    }


@pytest.mark.parametrize("name", cases())
def test_what_is_too_much_is_refused_and_others_go_on(server, name):
    path, body = cases()[name]
    with ThreadPoolExecutor(1) as pool:
        honest = pool.submit(httpx.post, server.url + COMPLETIONS, json=ENDLESS, timeout=120)
        server.reset()
        answer = httpx.post(server.url + path, content=body, timeout=120)
        pause = server.longest_pause_s
        assert answer.status_code == 400
        assert "accepted: at most" in answer.json()["error"]["message"]
        assert pause < MAX_PAUSE_S
        assert honest.result().text.endswith("data: [DONE]\n\n")


def test_as_much_as_is_accepted_keeps_nobody_waiting(server):
    """A million numbers each way, the largest answers and the most of everything at once."""
    tokens = [i % 4000 for i in range(1_000_000)]
    messages = [USER] * 16_000
    everything = completion(
        n=64,
        logprobs=20,
        echo=True,
        max_tokens=8,
        temperature=0,
        stop=[f"stop {i}" for i in range(64)],
        logit_bias={str(i): 0 for i in range(1024)},
        allowed_token_ids=list(range(4000)),
    )
    server.reset()
    for path, body, expected in (
        ("/detokenize", json.dumps({"tokens": tokens}).encode(), 200),
        ("/tokenize", json.dumps({"prompt": "a b " * 500_000, "return_token_strs": True}), 200),
        (CHAT, json.dumps({"messages": messages, "max_tokens": 1}).encode(), 400),
        (COMPLETIONS, everything, 200),
    ):
        answer = httpx.post(server.url + path, content=body, timeout=300)
        assert answer.status_code == expected, answer.text[:200]
    assert server.longest_pause_s < MAX_PAUSE_S


def test_memory_of_a_long_text_is_given_back(server):
    def resident_bytes() -> float:
        return metric(server.url, "process_resident_memory_bytes")

    body = {"prompt": "the quick brown fox jumps over the lazy dog " * 90_000}
    before = resident_bytes()
    for _ in range(2):
        answer = httpx.post(f"{server.url}/tokenize", json=body, timeout=120)
        assert answer.status_code == 200
    del answer
    wait_for(lambda: resident_bytes() - before < MAX_KEPT, "memory is given back", 20)
