"""The process with models that compare tokens: all as sentence-transformers has it."""

import json
from pathlib import Path

import httpx
import numpy as np
import pytest

from encoder_models import GOLDEN
from opened_models import write_as_packed
from serving import lanewise_server
from tests.golden.encoders.colbert_texts import DOCUMENTS, QUERIES
from tiny_colbert import CASES, DIMS, write_colbert

pytestmark = [pytest.mark.e2e, pytest.mark.native]

WANTED = json.loads((GOLDEN / "colberts.json").read_text())


def asked(url: str, path: str, **body: object) -> dict[str, object]:
    answer = httpx.post(f"{url}{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def check(url: str, name: str) -> None:
    wanted, sums, counts = WANTED[name], [], []
    for kind, texts in (("query", QUERIES), ("document", DOCUMENTS)):
        found = asked(url, "/pooling", input=texts, prompt_name=kind, truncate=True)
        rows = [np.array(one["data"]) for one in found["data"]]
        assert {row.shape[1] for row in rows} == {DIMS}
        lengths = np.concatenate([np.linalg.norm(row, axis=1) for row in rows])
        assert np.abs(lengths - 1).max() < 1e-5
        counts.append([len(row) for row in rows])
        sums += [row.sum(axis=0) for row in rows]
    assert counts == [wanted["queries"], wanted["documents"]]
    assert np.abs(np.array(sums) - np.array(wanted["sums"])).max() < 2e-5
    for query, scores in zip(QUERIES, wanted["scores"], strict=True):
        found = asked(url, "/v1/score", text_1=query, text_2=DOCUMENTS, truncate=True)
        assert [one["score"] for one in found["data"]] == pytest.approx(scores, abs=2e-5)
        found = asked(url, "/v1/rerank", query=query, documents=DOCUMENTS, truncate=True)
        order = [one["index"] for one in found["results"]]
        assert order == sorted(range(len(scores)), key=lambda index: -scores[index])


@pytest.mark.parametrize("name", CASES)
def test_vectors_and_scores_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    folder = write_colbert(tmp_path / "model", name)
    if name == "native":  # and packed it says the same
        folder = write_as_packed(folder, tmp_path / "packed", "f32")
    with lanewise_server(str(folder), "--threads", "2", "--weights", "f32") as url:
        check(url, name)
        for path in ("/v1/embeddings", "/embed"):
            answer = httpx.post(f"{url}{path}", json={"input": "a", "inputs": "a"}, timeout=60)
            assert "makes vectors of tokens" in answer.text
        answer = httpx.post(f"{url}/pooling", json={"input": "a", "task": "embed"}, timeout=60)
        assert answer.status_code == 400
        (model,) = httpx.get(f"{url}/v1/models", timeout=60).json()["data"]
        assert model["supported_tasks"] == ["token_embed", "score"]
