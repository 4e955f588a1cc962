"""Vectors of texts over a real socket, in the words of all servers that make them."""

import base64
import json
import socket
import threading
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from encoder_tokenizers import word_piece
from lanewise.api.encoding import running
from lanewise.api.encoding.vectors import written
from lanewise.api.endpoints.table import ENDPOINTS
from lanewise.api.shared.request_budgets import RequestBudgets
from lanewise.text.whole_texts import AT_ONCE, WholeTexts
from toy_encoder import DIMS, LIMIT, encoder_server, error_of, unit, vector, wanted
from toy_server import in_background

TEXTS = ["the river rises slowly", "nobody counts the houses", "", "東京 unbelievable"]
LONG = "the river " * 40


@pytest.fixture(scope="module")
def server():
    with encoder_server() as running:
        yield running


def vectors(answer: httpx.Response) -> list[list[float]]:
    assert answer.status_code == 200, answer.text
    return [one["embedding"] for one in answer.json()["data"]]


def test_texts_become_vectors(client):
    answer = client.post("/v1/embeddings", json={"model": "toy", "input": TEXTS})
    found = vectors(answer)
    assert np.allclose(found, [wanted(text) for text in TEXTS], atol=1e-6)
    shown = answer.json()
    n_tokens = sum(len(word_piece().encode(text)) for text in TEXTS)
    assert shown["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    assert [one["index"] for one in shown["data"]] == [0, 1, 2, 3]
    assert (shown["object"], shown["model"]) == ("list", "toy")
    (alone,) = vectors(client.post("/embeddings", json={"input": TEXTS[1]}))
    assert alone == found[1]


def test_tokens_of_a_text_are_those_that_the_model_reads(client):
    for text in TEXTS:
        told = client.post("/tokenize", json={"prompt": text}).json()
        assert told["tokens"] == list(word_piece().encode(text).ids)
        (by_text,), (by_ids,) = (
            vectors(client.post("/v1/embeddings", json={"input": one}))
            for one in (text, [told["tokens"]])
        )
        assert by_text == by_ids
        bare = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
        assert bare["tokens"] == told["tokens"][1:-1]
        ours = client.post("/tokenize", json={"content": text, "add_special": True}).json()
        assert ours["tokens"] == told["tokens"]


def test_every_bit_of_a_vector_arrives_in_both_forms(client):
    floats = vectors(client.post("/v1/embeddings", json={"input": TEXTS}))
    body = {"input": TEXTS, "encoding_format": "base64"}
    coded = vectors(client.post("/v1/embeddings", json=body))
    rows = [np.frombuffer(base64.b64decode(one), "<f4") for one in coded]
    assert np.array_equal(np.array(floats, np.float32), np.array(rows))


def test_openais_client_reads_them(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as sdk:
        found = sdk.embeddings.create(model="toy", input=TEXTS[:2], dimensions=8)
    assert [len(one.embedding) for one in found.data] == [8, 8]
    assert np.allclose(found.data[0].embedding, unit(wanted(TEXTS[0])[:8]), atol=1e-6)


def test_token_ids_are_taken_as_they_are(client):
    ids = word_piece().encode(TEXTS[0]).ids
    for given in (ids, [ids]):
        (found,) = vectors(client.post("/v1/embeddings", json={"input": given}))
        assert np.allclose(found, wanted(TEXTS[0]), atol=1e-6)


def test_fewer_dimensions_have_length_1_again(client):
    (found,) = vectors(client.post("/v1/embeddings", json={"input": "the", "dimensions": 5}))
    assert np.allclose(found, unit(wanted("the")[:5]), atol=1e-6)
    error = error_of(client.post("/v1/embeddings", json={"input": "a", "dimensions": DIMS + 1}))
    assert error["message"] == (
        f"dimensions: {DIMS + 1} is more than the model has; accepted: 1 to {DIMS}"
    )


def test_what_is_too_long_is_refused_or_cut(client):
    n_tokens = len(word_piece().encode(LONG))
    error = error_of(client.post("/v1/embeddings", json={"input": ["a", LONG]}))
    assert error["message"] == (
        f"input[1]: the text has {n_tokens} tokens; accepted: at most {LIMIT}, or truncate: true"
    )
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
    cut = (
        ({"truncate": True}, LIMIT),
        ({"truncate": "END"}, LIMIT),
        ({"truncate_prompt_tokens": -1}, LIMIT),
        ({"truncate_prompt_tokens": 9}, 9),
    )
    for asked, limit in cut:
        (found,) = vectors(client.post("/v1/embeddings", json={"input": LONG} | asked))
        assert np.allclose(found, wanted(LONG, limit), atol=1e-6), asked
    ids = [7] * (LIMIT + 5)
    assert error_of(client.post("/v1/embeddings", json={"input": ids}))["param"] == "input"
    (found,) = vectors(client.post("/v1/embeddings", json={"input": ids, "truncate": True}))
    assert np.allclose(found, unit(vector(ids[:LIMIT])), atol=1e-6)
    for at in (0, 2, LIMIT + 1):
        body = {"input": "a", "truncate_prompt_tokens": at}
        error = error_of(client.post("/v1/embeddings", json=body))
        assert error["param"] == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "input is required"),
        ({"input": []}, "input", "the list is empty"),
        ({"input": [[]]}, "input", "the text has no tokens"),
        ({"input": ["a", 1]}, "input[1]", "got"),
        ({"input": [1, 2**31]}, "input", "is not a token; accepted: 0 to"),
        ({"input": [[1], [400_000]]}, "input[1]", "400000 is not a token; accepted: 0 to"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ({"input": "a", "dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ({"input": "a", "prompt_name": "x"}, "prompt_name", "none: the model has no prompts"),
        ({"input": "a", "truncate": "MIDDLE"}, "truncate", "'NONE', 'START' or 'END'"),
    ],
)
def test_wrong_fields_are_named(client, body, param, message):
    error = error_of(client.post("/v1/embeddings", json=body))
    assert message in error["message"]
    assert error["param"] == param


def test_other_models_are_not_here(client):
    error = error_of(client.post("/v1/embeddings", json={"model": "gpt", "input": "a"}), 404)
    assert error["code"] == "model_not_found"


def test_a_million_texts_and_megabytes_of_one_hurt_nobody(client):
    before = vectors(client.post("/v1/embeddings", json={"input": "the"}))
    many = b'{"input":[' + b",".join([b'"a"'] * 1_000_000) + b"]}"
    error = error_of(client.post("/v1/embeddings", content=many))
    assert "the body has 1000001 strings; accepted: at most" in error["message"]
    error = error_of(client.post("/v1/embeddings", json={"input": ["a"] * 3000}))
    assert error["message"] == "input: 3000 texts are too many; accepted: at most 2048 (max_texts)"
    long = "the river " * 800_000
    error = error_of(client.post("/v1/embeddings", json={"input": long}))
    assert "the text has 8000000 characters" in error["message"]
    (cut,) = vectors(client.post("/v1/embeddings", json={"input": long, "truncate": True}))
    assert np.allclose(cut, wanted(LONG, LIMIT), atol=1e-6)
    word = "x" * 500_000
    assert len(vectors(client.post("/v1/embeddings", json={"input": [word]}))) == 1
    error = error_of(client.post("/v1/embeddings", content=b"x" * (9 << 20)), 413)
    assert vectors(client.post("/v1/embeddings", json={"input": "the"})) == before


@pytest.mark.parametrize("char", ["!", "東"])
def test_megabytes_without_a_space_take_little_memory(client, char):
    text = char * (7_900_000 // len(char.encode()))
    before = peak(anew=True)
    error = error_of(client.post("/v1/embeddings", content=body_of(input=[text[:500_000]])))
    assert "the text has more than" in error["message"]
    for side in ("START", "END"):
        answer = client.post("/v1/embeddings", content=body_of(input=text, truncate=side))
        assert np.allclose(vectors(answer), [wanted(char * 99, LIMIT)], atol=1e-6)
    assert peak() - before < 400 << 20  # all tokens of it take gigabytes


def test_a_text_of_too_many_characters_is_named(client):
    body = {"input": ["the river", "a" * 7_900_000]}
    error = error_of(client.post("/v1/embeddings", json=body))
    assert error["code"] == "context_length_exceeded"
    assert "input[1]: the text has 7900000 characters; accepted: at most 524288" in error["message"]
    cut = client.post("/v1/embeddings", json=body | {"truncate": True})
    assert len(vectors(cut)) == 2


def body_of(**fields: object) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode()


def peak(anew: bool = False) -> int:
    """Bytes that this process had at most, since the last time anew."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


def test_as_many_texts_as_the_server_was_told():
    with encoder_server(options={"request_budgets": RequestBudgets(max_texts=2)}) as server:
        assert len(vectors(server.client.post("/v1/embeddings", json={"input": ["a"] * 2}))) == 2
        error = error_of(server.client.post("/v1/embeddings", json={"input": ["a"] * 3}))
        assert "accepted: at most 2 (max_texts)" in error["message"]


def test_rows_of_tokens(client):
    ids = word_piece().encode(TEXTS[0]).ids
    answer = client.post("/pooling", json={"input": [TEXTS[0]], "task": "token_embed"})
    (one,) = answer.json()["data"]
    assert np.allclose(one["data"], [vector([token]) for token in ids], atol=1e-6)
    answer = client.post("/pooling", json={"input": TEXTS[0]})
    assert np.allclose(answer.json()["data"][0]["data"], wanted(TEXTS[0]), atol=1e-6)


def test_more_rows_of_tokens_than_an_answer_holds_are_refused(client, monkeypatch):
    monkeypatch.setattr(running, "MAX_FLOATS", 100 * DIMS)
    body = {"input": [[7] * 10] * 11, "task": "token_embed"}
    error = error_of(client.post("/pooling", json=body))
    assert error["message"] == (
        "input: a row for each of 110 tokens is too much; accepted: at most 100 tokens in a request"
        " for rows of tokens"
    )
    assert client.post("/pooling", json=body | {"input": [[7] * 10] * 10}).status_code == 200
    assert client.post("/pooling", json=body | {"task": "embed"}).status_code == 200


def test_vectors_that_shall_not_have_length_1_have_not(client):
    ids = word_piece().encode("the").ids
    for path in ("/v1/embeddings", "/pooling"):
        body = {"input": "the", "dimensions": 5, "normalize": False}
        (one,) = client.post(path, json=body).json()["data"]
        assert np.allclose(one.get("embedding") or one["data"], vector(ids)[:5], atol=1e-6)
    error = error_of(client.post("/embedding", json={"content": "a", "embd_normalize": 1}))
    assert error["message"].startswith("embd_normalize")


def test_texts_of_who_has_left_are_not_cut_into_tokens(server, monkeypatch):
    left, groups = threading.Event(), []
    cut = WholeTexts._cut_into_tokens

    def when_left(self, group, *others):
        groups.append(len(group))
        assert left.wait(30)
        cut(self, group, *others)

    monkeypatch.setattr(WholeTexts, "_cut_into_tokens", when_left)
    monkeypatch.setattr(running, "Event", lambda: left)
    body = {"input": ["the river " * 3] * 2048}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=0.5)
    # The next long request comes when that has ended.
    monkeypatch.setattr(running, "Event", threading.Event)
    vectors(server.client.post("/v1/embeddings", json=body))
    assert len(groups) == 1 + 2048 // AT_ONCE


def test_in_the_words_of_others(client):
    first = wanted(TEXTS[0])
    assert np.allclose(client.post("/embed", json={"inputs": TEXTS[0]}).json(), [first], atol=1e-6)
    bare = client.post("/embed", json={"inputs": [TEXTS[0]], "normalize": False}).json()
    assert np.allclose(bare, [vector(word_piece().encode(TEXTS[0]).ids)], atol=1e-6)
    assert error_of(client.post("/embed", json={"inputs": LONG}))["param"] == "inputs"
    answer = client.post("/api/embed", json={"model": "toy", "input": [TEXTS[0], LONG]}).json()
    assert np.allclose(answer["embeddings"], [first, wanted(LONG, LIMIT)], atol=1e-6)
    assert answer["model"] == "toy"
    assert answer["prompt_eval_count"] > LIMIT
    refused = client.post("/api/embed", json={"input": LONG, "truncate": False})
    assert refused.status_code == 400
    assert "at most 32" in refused.json()["error"]
    answer = client.post("/api/embeddings", json={"prompt": TEXTS[0]}).json()
    assert np.allclose(answer["embedding"], first, atol=1e-6)
    answer = client.post("/embedding", json={"content": TEXTS[0]}).json()
    assert np.allclose(answer[0]["embedding"], [first], atol=1e-6)
    info = client.get("/info").json()
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["max_input_length"] == LIMIT


def test_prompts_by_name():
    prompts = {"query": "query the ", "document": ""}
    with encoder_server(prompts=prompts, default_prompt="query") as server:
        client = server.client
        asked = (
            ({}, "query the river"),
            ({"prompt_name": "query"}, "query the river"),
            ({"prompt_name": "document"}, "river"),
            ({"input_type": "passage"}, "river"),
            ({"input_type": "search_query"}, "query the river"),
        )
        for fields, text in asked:
            answer = client.post("/v1/embeddings", json={"input": "river"} | fields)
            assert np.allclose(vectors(answer), [wanted(text)], atol=1e-6), fields
        answer = client.post("/embedding", json={"content": "river", "prompt_name": "document"})
        assert np.allclose(answer.json()[0]["embedding"], [wanted("river")], atol=1e-6)
        error = error_of(client.post("/v1/embeddings", json={"input": "a", "prompt_name": "x"}))
        assert error["message"].endswith("accepted: 'query', 'document'")
        (model,) = client.get("/v1/models").json()["data"]
        assert model["prompts"] == prompts
        assert model["dimensions"] == DIMS


def test_what_a_model_without_text_says_of_text(client):
    for endpoint in ENDPOINTS:
        if endpoint.speaks or endpoint.path in ("/slots", "/apply-template"):
            answer = client.request(endpoint.method, endpoint.path, json={})
            assert answer.status_code in (501, 529), endpoint.path
            assert "cannot generate: it makes vectors" in answer.text
    error = error_of(client.post("/classify", json={"input": "a"}), 501)
    assert "makes vectors of texts; accepted: /v1/embeddings" in error["message"]
    assert client.get("/v1/embeddings").json()["error"]["code"] == "method_not_allowed"
    assert client.post("/api/show", json={"model": "toy"}).json()["capabilities"] == ["embedding"]
    assert client.get("/props").json()["total_slots"] == 1
    assert client.get("/v1/models").json()["data"][0]["supported_tasks"][0] == "embed"


def test_who_leaves_is_waited_for_no_more(server):
    server.runner.begun.clear()
    server.runner.gate.clear()
    body = json.dumps({"input": ["the"] * 500}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as caller:
            caller.sendall(head.encode() + body)
            assert server.runner.begun.wait(60)
        server.wait_until(lambda: not server.state.engine._inbox.empty())
    finally:
        server.runner.gate.set()
    server.wait_until(lambda: server.state.engine.unfinished == 0)
    assert server.metric("vllm:request_success_total", finished_reason="abort") >= 1


def test_the_queue_has_a_limit_over_http():
    with encoder_server(max_requests=1) as server:
        server.runner.begun.clear()  # the warm-up's
        server.runner.gate.clear()
        body = {"input": "the"}
        answers = []
        thread = in_background(
            lambda: answers.append(httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60))
        )
        assert server.runner.begun.wait(60)
        refused = server.client.post("/v1/embeddings", json=body)
        server.runner.gate.set()
        thread.join(60)
    error = error_of(refused, 429)
    assert "1 requests run or wait already; the limit is 1" in error["message"]
    assert int(refused.headers["retry-after"]) >= 1
    (answer,) = answers
    assert np.allclose(vectors(answer), [wanted("the")], atol=1e-6)


def test_the_numbers_of_a_vector_are_short_and_exact():
    row = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    assert np.array_equal(np.array(json.loads(written(row)), np.float32), row)
    odd = np.array([0, -0.0, 1e-38, 3.4e38, 1 / 3], np.float32)
    assert np.array_equal(np.array(json.loads(written(odd)), np.float32), odd)
