"""Answers that are kept: how many, whose, and what goes first."""

import json
import random

from lanewise.api.generation.custom_tools import InputReader
from lanewise.api.shared.response_store import ResponseStore, Stored
from toy_server import toy_server


def stored(size):
    return Stored(b"r" * (size // 2), (b"i" * (size - size // 2),))


def test_who_keeps_most_loses_its_oldest():
    store = ResponseStore(most_bytes=100, most=100)
    store.put(1, "small", stored(10))
    for i in range(9):
        store.put(2, f"large {i}", stored(20))
        assert store.bytes <= 100
    assert store.get(1, "small")
    assert [i for i in range(9) if store.get(2, f"large {i}")] == [5, 6, 7, 8]
    assert store.get(2, "large 5")  # used last
    store.put(2, "one more", stored(20))
    assert store.get(2, "large 5")
    assert not store.get(2, "large 6")
    store.put(3, "too large", stored(101))
    assert not store.get(3, "too large")
    assert not store.get(2, "small")


def test_so_many_and_no_more():
    store = ResponseStore(most_bytes=1000, most=3)
    for i in range(5):
        store.put(i % 2, str(i), stored(1))
    assert sum(store.get(i % 2, str(i)) is not None for i in range(5)) == 3
    assert store.delete(0, "4")
    assert not store.delete(0, "4")
    assert store.bytes == 2


def test_a_server_may_keep_nothing():
    with toy_server(responses=ResponseStore(most_bytes=0)) as server:
        body = {"input": "hi", "max_output_tokens": 1}
        whole = server.client.post("/v1/responses", json=body).json()
        assert whole["store"] is False
        assert server.client.get(f"/v1/responses/{whole['id']}").status_code == 404


def test_a_text_is_read_from_json_in_any_pieces():
    rng = random.Random(3)
    texts = ['a"\\\n\t\b\f\r/é😀\u2028', "", "\x00\x1f", "{}"]
    texts += ["".join(chr(rng.choice((9, 34, 92, 65, 0x1F600))) for _ in range(12)) for _ in "1234"]
    for text in texts:
        for ascii_ in (True, False):
            written = json.dumps({"input": text}, ensure_ascii=ascii_)
            for _ in range(20):
                reader, made, rest = InputReader(), "", written
                while rest:
                    cut = rng.randint(1, 4)
                    made, rest = made + reader.push(rest[:cut]), rest[cut:]
                assert made == text
