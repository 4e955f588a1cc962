"""The process with a model that is pooled, from a directory of sentence-transformers: real rows."""

import base64
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from encoder_models import GOLDEN, encoder_model
from encoder_tokenizers import random_texts, word_piece
from family_models import write_model
from lanewise.host import MemoryLimit
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Model
from lanewise.server import make_encoder
from lanewise.settings import Settings
from opened_models import opened_encoder
from serving import lanewise_server
from tiny_embedder import DIMS, LIMIT, VOCAB_SIZE, write_embedder
from tiny_judge import OVERRIDES, write_judge

pytestmark = [pytest.mark.e2e, pytest.mark.native]

LIBRARY = word_piece(size=VOCAB_SIZE)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return write_embedder(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="module")
def url(directory):
    with lanewise_server(str(directory), "--threads", "2", "--weights", "f32") as running:
        yield running


def rows_of(directory: Path, texts: list[str]) -> NDArray[np.float32]:
    """What the library makes of texts, without a server; tanh and length 1 are done here."""
    library = word_piece(size=VOCAB_SIZE)
    library.enable_truncation(LIMIT)
    ids = [np.array(one.ids, np.uint32) for one in library.encode_batch(texts)]
    with opened_encoder(directory, threads=1, weights="f32") as encoder:
        assert encoder.dims == DIMS
        return np.array([encoder.run([one])[0] for one in ids])


def vectors(url: str, **body: object) -> NDArray[np.float32]:
    body = {"encoding_format": "base64", "truncate": True} | body
    answer = httpx.post(f"{url}/v1/embeddings", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    coded = [one["embedding"] for one in answer.json()["data"]]
    return np.array([np.frombuffer(base64.b64decode(one), "<f4") for one in coded])


def test_one_text_has_the_same_bits_in_any_company(url, directory):
    texts = [text.strip() or "the" for text in random_texts(120, 5)]
    wanted = rows_of(directory, texts)
    assert np.array_equal(vectors(url, input=texts), wanted)
    with ThreadPoolExecutor(8) as pool:
        alone = list(pool.map(lambda text: vectors(url, input=text)[0], texts[:60]))
    assert np.array_equal(alone, wanted[:60])
    assert np.allclose(np.linalg.norm(wanted, axis=1), 1, atol=1e-5)


def test_prompts_and_limits_are_those_of_the_directory(url, directory):
    (found,) = vectors(url, input="the river", prompt_name="query")
    assert np.array_equal(found, rows_of(directory, ["query the river"])[0])
    refused = httpx.post(f"{url}/v1/embeddings", json={"input": "the river " * 50})
    assert f"accepted: at most {LIMIT}" in refused.json()["error"]["message"]
    (model,) = httpx.get(f"{url}/v1/models").json()["data"]
    assert (model["dimensions"], model["max_model_len"]) == (DIMS, LIMIT)


def test_a_packed_directory_says_the_same(directory, tmp_path):
    packed = tmp_path / "packed"
    command = [sys.executable, "-m", "lanewise", "pack", str(directory), "--output", str(packed)]
    subprocess.run([*command, "--weights", "f32"], check=True, timeout=120)
    with open_checkpoint(directory) as one, open_checkpoint(packed) as other:
        assert other.config.pooling == one.config.pooling
        assert other.sentences is not None
        assert replace(other.sentences, dense=()) == replace(one.sentences, dense=())
        assert [dense.outputs for dense in other.sentences.dense] == [DIMS]
    text = "the river rises slowly"
    assert np.array_equal(rows_of(packed, [text]), rows_of(directory, [text]))


def test_without_a_limit_texts_are_as_long_as_memory_allows(directory, monkeypatch):
    limit = MemoryLimit(4 * 100 * make_encoder.WORKSPACE_BYTES * 48, "a test", True)
    monkeypatch.setattr(make_encoder, "MIN_TOKENS", 1)
    with open_checkpoint(directory) as checkpoint, Model.load(checkpoint, weights="f32") as model:
        for asked, longest in ((None, 100), (200, 200)):
            settings = Settings(max_model_len=asked)
            engine = make_encoder.make_encoder(settings, model, 1, limit, None)
            assert engine.max_model_len == longest
            engine._runner.close()


def test_megabytes_and_wrong_ids_hurt_nobody(url):
    before = vectors(url, input="the river")
    many = b'{"input":[' + b",".join([b'"a"'] * 1_000_000) + b"]}"
    assert httpx.post(f"{url}/v1/embeddings", content=many, timeout=60).status_code == 400
    ids = [[1, 250], [2, 10**9]]
    assert httpx.post(f"{url}/v1/embeddings", json={"input": ids}).status_code == 400
    assert len(vectors(url, input="the river " * 700_000)) == 1
    assert np.array_equal(vectors(url, input="the river"), before)
    chat = httpx.post(f"{url}/v1/chat/completions", json={"messages": []})
    assert chat.status_code == 501
    assert "cannot generate" in chat.json()["error"]["message"]


@pytest.mark.parametrize("few", ["x" + " " * 600_000, "x" * 500_000])
def test_many_tokens_behind_a_long_beginning_are_refused_in_time(url, few):
    """With /health answered meanwhile; what would be made of it took 300 bytes a token."""
    body = {"input": few + "!" * 1_500_000}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{url}/v1/embeddings", json=body, timeout=120)
        answers = [httpx.get(f"{url}/health", timeout=20).status_code]
        while not asked.done():
            answers.append(httpx.get(f"{url}/health", timeout=20).status_code)
    assert {*answers} == {200}
    answer = asked.result()
    assert answer.status_code == 400, answer.text
    said = answer.json()["error"]
    assert said["code"] == "context_length_exceeded"
    assert f"of at most {LIMIT} tokens, or truncate: true" in said["message"]


def test_a_reranker_scores_pairs(tmp_path):
    folder = write_model(encoder_model("bert_reranker"), tmp_path / "reranker")
    LIBRARY.save(str(folder / "tokenizer.json"))
    documents = ["the river rises", "nobody counts", "wide fields"]
    with lanewise_server(str(folder), "--threads", "1", "--weights", "f32") as url:
        body = {"query": "the river", "documents": documents, "raw_scores": True}
        results = httpx.post(f"{url}/v1/rerank", json=body, timeout=60).json()["results"]
        assert httpx.post(f"{url}/v1/embeddings", json={"input": "a"}).status_code == 501
    pairs = LIBRARY.encode_batch([("the river", text) for text in documents])
    with opened_encoder(folder, threads=1, weights="f32") as encoder:
        rows = encoder.run(
            [np.array(one.ids, np.uint32) for one in pairs],
            [np.array(one.type_ids, np.uint32) for one in pairs],
        )
    found = {one["index"]: one["relevance_score"] for one in results}
    assert [np.float32(found[index]) for index in range(3)] == rows[:, 0].tolist()


def test_a_model_that_answers_yes_or_no_scores_pairs(tmp_path):
    """In everybody's words; with the numbers that transformers gives."""
    folder = write_judge(tmp_path / "judge")
    cases = json.loads((GOLDEN / "judges.json").read_text())[:5]
    usual, other = cases[::2], cases[1::2]
    overrides = ("--hf-overrides", json.dumps(OVERRIDES))
    with lanewise_server(str(folder), "--threads", "1", "--weights", "f32", *overrides) as url:

        def ask(path: str, status: int = 200, **body: object) -> Any:
            answer = httpx.post(f"{url}{path}", json=body, timeout=60)
            assert answer.status_code == status, answer.text
            return answer.json()

        def check(scores: dict[int, float], wanted: list[dict]) -> None:
            found = [scores[index] for index in range(len(wanted))]
            assert np.allclose(found, [one["score"] for one in wanted], atol=2e-5)

        query, documents = usual[0]["query"], [one["document"] for one in usual]
        for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
            answer = ask(path, query=query, documents=documents)
            check({one["index"]: one["relevance_score"] for one in answer["results"]}, usual)
            assert answer["usage"]["total_tokens"] == sum(len(one["ids"]) for one in usual)
        of_tei = ask("/rerank", query=query, texts=documents)
        check({one["index"]: one["score"] for one in of_tei}, usual)
        raw = ask("/rerank", query=query, texts=documents, raw_scores=True)
        check({one["index"]: 1 / (1 + np.exp(-one["score"])) for one in raw}, usual)
        more = {"text_1": other[0]["query"], "text_2": [one["document"] for one in other]}
        for path, name in (("/v1/score", "instruction"), ("/score", "instruct")):
            data = ask(path, **more, **{name: other[0]["instruction"]})["data"]
            check({one["index"]: one["score"] for one in data}, other)
        long = ask("/v1/rerank", 400, query="a", documents=["a"], instruct="x" * 4097)["error"]
        assert (long["param"], "accepted: at most 4096" in long["message"]) == ("instruct", True)
        assert "reranker" in httpx.get(f"{url}/info").json()["model_type"]
        refused = ask("/v1/embeddings", 501, input="a")["error"]["message"]
        assert "scores pairs of texts; accepted: /v1/rerank" in refused
        (one,) = ask("/classify", input="a")["data"]
        assert (one["label"], len(one["probs"])) == ("yes", 1)
