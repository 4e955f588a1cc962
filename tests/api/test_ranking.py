"""Scores of pairs and classes over a real socket: Cohere's, Jina's, vLLM's and TEI's words."""

import json
import math

import numpy as np
import pytest

from toy_encoder import CLASSES, encoder_server, error_of, wanted

QUERY = "the river rises"
DOCUMENTS = ["nobody counts", "the river rises slowly", "over the river"]
SHARED = [0, 3, 2]  # words of the query in each


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


@pytest.fixture(scope="module")
def reranker():
    with encoder_server(labels=("LABEL_0",)) as running:
        yield running.client


@pytest.fixture(scope="module")
def server():
    with encoder_server() as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking"])
def test_documents_are_ranked(reranker, path):
    body = {"model": "toy", "query": QUERY, "documents": DOCUMENTS}
    answer = reranker.post(path, json=body).json()
    results = answer["results"]
    assert [one["index"] for one in results] == [1, 2, 0]
    scores = [sigmoid(SHARED[index] - 2) for index in (1, 2, 0)]
    assert np.allclose([one["relevance_score"] for one in results], scores)
    shows = not path.startswith("/v2")
    assert [one.get("document") for one in results] == [
        {"text": DOCUMENTS[index]} if shows else None for index in (1, 2, 0)
    ]
    assert answer["usage"]["total_tokens"] > 20


def test_fewer_and_with_their_texts(reranker):
    every = {"query": QUERY, "documents": DOCUMENTS}
    whole = reranker.post("/v1/rerank", json=every).json()["results"]
    assert reranker.post("/v1/rerank", json=every | {"top_n": 0}).json()["results"] == whole
    body = {"query": QUERY, "documents": [{"text": text} for text in DOCUMENTS], "top_n": 1}
    answer = reranker.post("/v2/rerank", json=body | {"return_documents": True}).json()
    assert answer["results"][0]["document"] == {"text": DOCUMENTS[1]}
    assert len(answer["results"]) == 1


def test_in_the_words_of_text_embeddings_inference(reranker):
    body = {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True, "return_text": True}
    assert reranker.post("/rerank", json=body).json() == [
        {"index": index, "score": SHARED[index] - 2, "text": DOCUMENTS[index]}
        for index in (1, 2, 0)
    ]


def test_scores_of_pairs(reranker):
    body = {"text_1": QUERY, "text_2": DOCUMENTS}
    for given in (body, body | {"text_1": [QUERY] * 3}):
        data = reranker.post("/score", json=given).json()["data"]
        assert np.allclose([one["score"] for one in data], [sigmoid(n - 2) for n in SHARED])
    error = error_of(reranker.post("/score", json=body | {"text_1": [QUERY] * 2}))
    assert error["param"] == "text_2"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": "a", "documents": ["a"], "texts": ["a"]}, "documents"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "texts": []}, "texts"),
        ({"query": "a", "documents": [{"title": "a"}]}, "documents[0].text"),
        ({"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
        ({"query": "a", "documents": ["a"], "instruction": "b"}, "instruction"),
        ({"query": "a", "documents": ["a"], "instruct": "b"}, "instruct"),
        ({"query": "the " * 60, "documents": ["a", "b"]}, "documents[0]"),
    ],
)
def test_wrong_fields_are_named(reranker, body, param):
    assert error_of(reranker.post("/v1/rerank", json=body))["param"] == param


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/pooling", {"input": "a"}),
        ("/embed", {"inputs": "a"}),
        ("/api/embed", {"input": "a"}),
        ("/api/embeddings", {"prompt": "a"}),
        ("/embedding", {"content": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["a"]}),
        ("/v2/rerank", {"query": "a", "documents": [{"text": "a", "title": "b"}]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
    ],
)
def test_fields_that_are_ignored_are_told(server, path, body):
    harmless = {"user": "me", "keep_alive": "5m", "request_id": "7", "late_chunking": False}
    quiet = server.client.post(path, json=body | harmless)
    assert quiet.status_code == 200, quiet.text
    assert "x-lanewise-warning" not in quiet.headers
    told = server.client.post(path, json=body | harmless | {"late_chunking": True, "tásk": "x"})
    assert told.headers["x-lanewise-warning"] == (
        "not known here, and ignored: late_chunking, t\\xe1sk"
    )


def test_of_pairs_the_longer_text_is_cut(reranker):
    body = {"query": QUERY, "documents": [" ".join(["river"] * 80)], "truncate": True}
    (result,) = reranker.post("/v1/rerank", json=body).json()["results"]
    assert result["relevance_score"] == pytest.approx(sigmoid(-1))


def test_a_reranker_gives_no_vectors(reranker):
    error = error_of(reranker.post("/v1/embeddings", json={"input": "a"}), 501)
    assert "'toy' (unknown) scores pairs of texts; accepted: /v1/rerank" in error["message"]
    assert "reranker" in reranker.get("/info").json()["model_type"]


def test_of_an_embedder_scores_are_cosines(client):
    cosines = [float(wanted(QUERY) @ wanted(text)) for text in DOCUMENTS]
    answer = client.post("/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS}).json()
    found = {one["index"]: one["relevance_score"] for one in answer["results"]}
    assert np.allclose([found[index] for index in range(3)], cosines, atol=1e-6)
    scores = [one["relevance_score"] for one in answer["results"]]
    assert scores == sorted(scores, reverse=True)


def test_classes_with_their_probabilities():
    with encoder_server(labels=CLASSES) as server:
        answer = server.client.post("/classify", json={"input": ["a", "the river"]}).json()
        powers = np.exp([0, 1, 2])
        for index, one in enumerate(answer["data"]):
            assert (one["index"], one["label"], one["num_classes"]) == (index, "good", 3)
            assert np.allclose(one["probs"], powers / powers.sum())
        refused = server.client.post("/v1/rerank", json={"query": "a", "documents": ["a"]})
        assert "names the classes of texts" in error_of(refused, 501)["message"]


def test_cosines_are_of_one_request(server):
    before = server.metric("vllm:request_success_total", finished_reason="stop")
    body = {"query": QUERY, "documents": [*DOCUMENTS, "\ud800"]}
    content = json.dumps(body).encode()
    assert server.client.post("/v1/rerank", content=content).status_code == 200
    after = server.metric("vllm:request_success_total", finished_reason="stop")
    assert after - before == 1
