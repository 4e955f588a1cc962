"""The load of texts for vectors against real servers, alone and beside a chat's streams."""

import json

import pytest

from loadtests.embeddings import main
from serving import lanewise_server
from tiny_embedder import write_embedder

pytestmark = [pytest.mark.e2e, pytest.mark.native]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = write_embedder(tmp_path_factory.mktemp("models") / "tiny-bert")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 250}')
    with lanewise_server(str(folder), "--threads", "1") as url:
        yield url


def test_lengths_and_numbers_of_texts_are_measured(url, capsys):
    arguments = ["--url", url, "--tokens", "8,24", "--batches", "1,3", "--seconds", "0.05"]
    assert main([*arguments, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["batch"] for cell in cells] == [1, 3, 1, 3]
    for cell, tokens in zip(cells, (8, 8, 24, 24), strict=True):
        assert cell["tokens"] == pytest.approx(tokens, rel=0.4)
        assert cell["requests"] >= 3
        assert 0 < cell["p50_ms"] <= cell["p99_ms"]
        rate = cell["texts_per_second"]
        assert cell["tokens_per_second"] == pytest.approx(rate * cell["tokens"])
    assert main([*arguments, "--tokens", "8", "--batches", "2"]) == 0
    assert "2 at a time" in capsys.readouterr().out


@pytest.mark.thorough
def test_what_texts_cost_the_streams_of_a_chat_server_is_measured(url, capsys):
    arguments = ["--url", url, "--tokens", "8", "--batches", "64", "--texts", "3000"]
    arguments += ["--streams", "2", "--stream-tokens", "40", "--connections", "2", "--calm", "0.5"]
    with lanewise_server("--threads", "1") as chat:
        assert main([*arguments, "--chat-url", chat, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["texts"] == 3000
        assert report["texts_per_second"] > 0
        for name in ("itl_calm_ms", "itl_beside_ms"):
            assert 0 < report[name]["p50"] <= report[name]["p99"]
        ratio = report["itl_beside_ms"]["p99"] / report["itl_calm_ms"]["p99"]
        assert report["itl_p99_ratio"] == pytest.approx(ratio)
        refused = ["--url", chat, "--chat-url", chat]
        assert main(refused) == 2
        assert "loadtests: status 501" in capsys.readouterr().err
