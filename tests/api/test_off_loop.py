"""Where work is done: what takes long leaves the event loop, and holds up only its like."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest

from lanewise.api.dialects import openai_wire
from lanewise.api.generation import drawing, rendering
from lanewise.api.generation.logprobs import TokenNames
from lanewise.api.shared.request_budgets import RequestBudgets
from lanewise.api.shared.workers import Workers
from lanewise.text.detokenizer import StopStrings
from lanewise.text.tokenizer import Tokenizer
from toy_server import CONFIG, in_background, toy_server

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
LONG = {"prompt": [65 + i % 20 for i in range(480)], "max_tokens": 2}
ECHO = {**LONG, "echo": True, "logprobs": 20}
LARGE = replace(CONFIG, max_model_len=1024, max_step_tokens=512, max_queued_requests=256)


@pytest.fixture(scope="module")
def server():
    with toy_server(LARGE) as running:
        yield running


@pytest.fixture
def threads_of(monkeypatch):
    """Has the threads in which a function is called written down."""

    def watch(owner: object, name: str) -> set[str]:
        function, found = getattr(owner, name), set()

        def watched(*args, **kwargs):
            found.add(threading.current_thread().name.rpartition("_")[0])
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)
        return found

    return watch


def arguments(text: str) -> list[dict]:
    function = {"name": "f", "arguments": text}
    call = {"id": "1", "type": "function", "function": function}
    return [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, USER]


TEXT, LONG_TEXT, ANSWER = "lanewise-text", "lanewise-long-text", "lanewise-answer"


@pytest.mark.parametrize(
    ("owner", "function", "path", "body", "thread"),
    [
        (RequestBudgets, "check", COMPLETIONS, LONG | {"user": "x" * 3000}, TEXT),
        (
            RequestBudgets,
            "check",
            COMPLETIONS,
            LONG | {"user": "x" * 100_000},
            LONG_TEXT,
        ),
        (rendering, "read_prompts", COMPLETIONS, LONG | {"user": "x" * 3000}, TEXT),
        (drawing, "check_ids", COMPLETIONS, LONG | {"stop_token_ids": [5] * 1000}, TEXT),
        (StopStrings, "_link", COMPLETIONS, LONG | {"stop": ["x" * 100] * 60}, TEXT),
        (
            rendering,
            "pack_conversation",
            CHAT,
            {"messages": [USER] * 100, "max_tokens": 1},
            TEXT,
        ),
        (
            rendering,
            "pack_conversation",
            CHAT,
            {"messages": arguments(json.dumps({"x": "y" * 3000})), "max_tokens": 1},
            TEXT,
        ),
        (
            rendering,
            "pack_conversation",
            "/tokenize",
            {"messages": [USER] * 3000},
            LONG_TEXT,
        ),
        (
            Tokenizer,
            "token_text",
            "/tokenize",
            {"prompt": "x" * 3000, "return_token_strs": True},
            ANSWER,
        ),
        (Tokenizer, "decode", "/detokenize", {"tokens": [65] * 3000}, TEXT),
        (TokenNames, "name", COMPLETIONS, ECHO, ANSWER),
        (TokenNames, "name", COMPLETIONS, ECHO | {"stream": True}, ANSWER),
        (
            openai_wire,
            "dumps_long",
            COMPLETIONS,
            LONG | {"prompt": [LONG["prompt"]] * 8, "max_tokens": 0, "return_token_ids": True},
            ANSWER,
        ),
        (
            openai_wire,
            "dumps_long",
            COMPLETIONS,
            {"prompt": "abc", "n": 128, "max_tokens": 4, "logprobs": 20, "temperature": 0},
            ANSWER,
        ),
    ],
)
def test_long_work_is_done_beside_the_event_loop(
    server, threads_of, owner, function, path, body, thread
):
    found = threads_of(owner, function)
    response = server.client.post(path, json=body)
    assert response.status_code in (200, 400), response.text
    assert thread in found


def test_short_work_is_not_handed_over(server, threads_of):
    found = [
        threads_of(owner, name)
        for owner, name in ((RequestBudgets, "check"), (Tokenizer, "encode"))
    ]
    body = {"prompt": "abc", "max_tokens": 2, "logprobs": 1}
    assert server.client.post(COMPLETIONS, json=body).status_code == 200
    assert all(not one & {TEXT, LONG_TEXT, ANSWER} for one in found)


@contextmanager
def long_prompts_waiting(server, monkeypatch, n_clients: int) -> Iterator[None]:
    """So many clients whose long prompts are to be tokenized, and none is."""
    encode, gate, entered = Tokenizer.encode, threading.Event(), threading.Event()

    def slow(self, text, **options):
        if len(text) > 100_000:
            entered.set()
            assert gate.wait(60)
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", slow)
    body = {"prompt": "word " * 30_000}
    threads = [
        in_background(lambda: httpx.post(server.url + COMPLETIONS, json=body, timeout=60))
        for _ in range(n_clients)
    ]
    try:
        assert entered.wait(60)
        yield
    finally:
        gate.set()
        for thread in threads:
            thread.join()


def test_long_prompts_hold_up_neither_shorter_ones_nor_answers(server, monkeypatch):
    with long_prompts_waiting(server, monkeypatch, 8):
        for path, body in (
            ("/tokenize", {"prompt": "x" * 20_000, "return_token_strs": True}),
            (COMPLETIONS, LONG | {"user": "x" * 10_000}),
            (COMPLETIONS, ECHO),
            (CHAT, {"messages": [USER] * 20, "max_tokens": 1}),
        ):
            assert server.client.post(path, json=body).status_code == 200


def test_answers_are_the_same_wherever_they_are_written(server, monkeypatch):
    bodies = [
        {"prompt": [65, 66, 67], "n": 3, "max_tokens": 6, "seed": 1, "stop": ["a", "bc"]},
        {"prompt": ["ab", "cd"], "echo": True, "logprobs": 3, "max_tokens": 3, "seed": 1},
        {"prompt": "ab", "return_token_ids": True, "n": 2, "best_of": 3, "seed": 1},
    ]

    def asked() -> list:
        answers = []
        for body in bodies:
            answers.append(server.client.post(COMPLETIONS, json=body).json()["choices"])
            if "best_of" in body:
                continue
            lines = server.client.post(COMPLETIONS, json=body | {"stream": True}).text.split("\n\n")
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            answers.append(sorted((e["choices"] for e in events), key=str))
        return answers

    monkeypatch.setattr("lanewise.api.shared.workers.INLINE_SIZE", 1 << 40)
    inline = asked()
    monkeypatch.setattr("lanewise.api.shared.workers.INLINE_SIZE", 0)
    assert asked() == inline


def test_memory_is_given_back_after_large_work_and_after_no_other():
    given_back = threading.Semaphore(0)
    with toy_server(LARGE, workers=Workers(given_back.release)) as server:
        server.client.post("/tokenize", json={"prompt": "x" * 60_000, "return_token_strs": True})
        assert server.client.post(COMPLETIONS, json=LONG | {"logprobs": 20}).status_code == 200
        assert not given_back.acquire(timeout=0.1)
        server.client.post("/detokenize", json={"tokens": [65] * 400_000})
        assert given_back.acquire(timeout=10)  # the tokens' bytes
        body = {"prompt": [ECHO["prompt"]] * 40, "max_tokens": 1, "echo": True, "logprobs": 20}
        assert server.client.post(COMPLETIONS, json=body).status_code == 200
        assert given_back.acquire(timeout=10)  # the whole answer's names
