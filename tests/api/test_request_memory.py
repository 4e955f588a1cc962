"""What a request makes the server hold: counted before it is made, given back when it ends."""

import json
import socket
import threading
from dataclasses import replace

import pytest

from lanewise.api.dialects.responses import endpoints, kept
from lanewise.held import TEXTS, held_within
from lanewise.host import GIB, MIB, HostError, MemoryLimit, choose_kv_blocks
from lanewise.server.start import within_memory
from lanewise.settings import Settings
from raw_http import pending
from toy_server import toy_server

RESPONSES = "/v1/responses"
EMPTY = {"type": "reasoning", "summary": []}
USER = {"role": "user", "content": "hi"}
SHORT = {"max_output_tokens": 1}
SMALL = Settings(request_memory=8 * MIB)


@pytest.fixture(scope="module")
def small():
    """A server whose requests hold 8 MiB together."""
    with toy_server(settings=SMALL) as running:
        yield running


def answered(server, **body) -> dict:
    answer = server.client.post(RESPONSES, json=SHORT | body)
    assert answer.status_code == 200, answer.text[:300]
    return answer.json()


def refused(server, path: str, body: dict) -> tuple[int, str]:
    answer = server.client.post(path, json=body)
    error = answer.json()["error"]
    assert answer.status_code != 503 or "retry-after" in answer.headers
    return answer.status_code, error["message"]


def reference(response: dict, number: int) -> dict:
    return {"type": "item_reference", "id": f"rs_{response['id'][5:]}{number:04x}"}


def test_items_without_tokens_count(server):
    status, said = refused(server, RESPONSES, SHORT | {"input": [EMPTY] * 16_384 + [USER]})
    assert (status, "16385 items and parts of them are too many" in said) == (400, True)
    first = answered(server, input=[EMPTY] * 5_000 + [USER])
    turn = {"input": [EMPTY] * 11_400, "previous_response_id": first["id"]}
    status, said = refused(server, RESPONSES, SHORT | turn)
    assert (status, "items and parts of them are too many" in said) == (400, True)
    parts = [{"type": "input_text", "text": ""}] * 16_384
    message = {"role": "user", "content": parts}
    assert refused(server, RESPONSES, SHORT | {"input": [message]})[0] == 400


def test_what_is_referred_to_is_read_an_answer_at_a_time_and_given_back(small):
    kept_ones = [answered(small, input=[EMPTY] * 2_000 + [USER]) for _ in range(6)]
    small.wait_until(lambda: pending(small) == 0)
    # Of each there is room for half; all at once would be three times too much.
    references = [reference(one, i) for i, one in enumerate(kept_ones)]
    assert answered(small, input=[*references, USER], store=False)["status"] == "incomplete"
    assert answered(small, input="on", previous_response_id=kept_ones[0]["id"])
    small.wait_until(lambda: pending(small) == 0)


def test_an_item_that_is_referred_to_often_counts_as_often(small):
    text = {"type": "reasoning", "summary": [], "content": [{"type": "t", "text": "x" * 100_000}]}
    text["content"][0]["type"] = "input_text"
    large = answered(small, input=[text, USER], truncation="auto", truncate_prompt_tokens=9)
    many = [reference(large, 0)] * 1_000
    status, said = refused(small, RESPONSES, SHORT | {"input": [*many, USER]})
    assert (status, "request_memory" in said) == (413, True)
    small.wait_until(lambda: pending(small) == 0)


def test_references_are_looked_for_before_anything_is_read(small, monkeypatch):
    monkeypatch.setattr(kept, "_items", lambda _: pytest.fail("it was read"))
    gone = {"type": "item_reference", "id": "rs_0123456789abcdef01234567" + "0001"}
    assert refused(small, RESPONSES, SHORT | {"input": [gone]})[0] == 400


def test_what_is_kept_is_read_and_written_beside_the_event_loop(small, monkeypatch):
    threads = set()

    def watched(function):
        def call(*args):
            threads.add(threading.current_thread().name.rpartition("_")[0])
            return function(*args)

        return call

    for module, name in ((kept, "_items"), (endpoints, "stored"), (endpoints, "_page_of")):
        monkeypatch.setattr(module, name, watched(getattr(module, name)))
    first = answered(small, input=[EMPTY] * 1_000 + [USER])
    body = {"input": "on", "previous_response_id": first["id"], **SHORT}
    answered(small, **body)
    with small.client.stream("POST", RESPONSES, json=body | {"stream": True}) as stream:
        assert "response.incomplete" in stream.read().decode()
    assert small.client.get(f"{RESPONSES}/{first['id']}/input_items").status_code == 200
    assert threads
    assert all(name.startswith("lanewise-") for name in threads)


def test_tokens_are_counted_before_they_are_made(small):
    text = "the inner end " * 60_000
    for more in ({}, {"return_token_strs": True}):
        status, said = refused(small, "/tokenize", {"prompt": text, **more})
        assert (status, "accepted: at most 8388608 (request_memory)" in said) == (413, True)
    assert refused(small, "/tokenize", {"prompt": "a" * 200_000})[0] == 413
    assert refused(small, "/detokenize", {"tokens": [5] * 220_000})[0] == 413
    small.wait_until(lambda: pending(small) == 0)
    with toy_server() as server:
        whole = server.client.post("/tokenize", json={"prompt": text, "return_token_strs": True})
        ids = server.state.tokenizer.encode(text, add_bos=True, parse_special=True)
        assert whole.json()["tokens"] == ids
        assert "".join(whole.json()["token_strs"]).endswith(text)
        server.wait_until(lambda: pending(server) == 0)


def test_objects_are_counted_before_they_are_parsed(small):
    body = {"prompt": "a", "max_tokens": 1, "anything": [[]] * 20_000}
    status, said = refused(small, "/v1/completions", body)
    assert (status, "request_memory" in said) == (413, True)
    small.wait_until(lambda: pending(small) == 0)


def test_answers_are_counted_as_they_grow(small):
    body = {"prompt": [65] * 400, "max_tokens": 1, "echo": True, "logprobs": 20, "n": 4}
    status, said = refused(small, "/v1/completions", body)
    assert (status, "request_memory" in said) == (413, True)
    small.wait_until(lambda: pending(small) == 0)
    assert small.client.post("/v1/completions", json=body | {"n": 1}).status_code == 200


def test_an_answer_that_nobody_reads_is_held_for_its_client(small):
    raw = json.dumps({"prompt": "the inner end " * 20_000}).encode()
    host, port = small.url.removeprefix("http://").split(":")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((host, int(port)))
        sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(raw))
        sock.sendall(raw)
        small.wait_until(lambda: pending(small) > 0)
        small.wait_until(lambda: "/tokenize" in small.client.get("/metrics").text)
        assert pending(small) > 0
    small.wait_until(lambda: pending(small) == 0)


def limit(n_bytes: int) -> MemoryLimit:
    return MemoryLimit(n_bytes, "the test's", True)


def test_memory_is_planned_with_what_requests_may_hold():
    sizes = {
        "kv_memory": None,
        "packed_bytes": 100 * MIB,
        "block_bytes": MIB,
        "max_seqs": 10**6,
        "max_model_len": 4096,
        "sequence_blocks": 128,
    }
    for gib in (1, 2, 8):
        there_is = limit(gib * GIB)
        held = held_within(there_is)
        choice = choose_kv_blocks(**sizes, limit=there_is, held_bytes=held.n_bytes)
        margin = max(256 * MIB, gib * GIB // 20)
        assert choice.n_bytes + held.n_bytes + margin + 100 * MIB <= gib * GIB
        assert held.texts == TEXTS
    with pytest.raises(HostError, match="for requests"):
        choose_kv_blocks(**sizes, limit=limit(GIB // 2), held_bytes=held.n_bytes)


def test_settings_are_made_for_the_memory_there_is(caplog: pytest.LogCaptureFixture):
    settings = within_memory(Settings(), limit(GIB))
    assert settings.request_memory == 64 * MIB
    assert settings.grammar_cache_memory == 64 * MIB
    assert "grammar_cache_memory is lowered from 256.00 MiB to 64.00 MiB" in caplog.text
    caplog.clear()
    large = within_memory(Settings(), limit(32 * GIB))
    assert large == replace(Settings(), request_memory=GIB)
    assert not caplog.text
    assert within_memory(Settings(request_memory=9 * MIB), limit(GIB)).request_memory == 9 * MIB
    assert within_memory(Settings(max_body_bytes=GIB), limit(GIB)).request_memory == 2 * GIB
