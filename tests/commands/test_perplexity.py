"""The perplexity command against its definition, whatever the chunks and batches."""

import hashlib
import itertools
import json
import math

import numpy as np
import pytest

from lanewise.commands import perplexity
from lanewise.commands.perplexity import cut_windows, negative_log_likelihoods, score_windows
from lanewise.settings import PerplexitySettings, SettingsError

IDS = [(7 * i + 3) % 40 for i in range(100)]


def windows():
    return cut_windows(IDS, start=[1], context=36)


def score(session_class, **options):
    options = {"chunk": 36, "batch": 1} | options
    tokens = options["chunk"] * options["batch"]
    blocks = 2 * options["batch"]
    session = session_class(blocks=blocks, max_batch_tokens=tokens, max_batch_logits=tokens)
    return score_windows(session, windows(), **options)


def test_windows_do_not_overlap_and_each_begins_with_the_start_token():
    assert cut_windows([5, 6, 7, 8, 9], start=[1], context=3) == [[1, 5, 6], [1, 7, 8], [1, 9]]
    assert cut_windows([5, 6, 7, 8, 9], start=[], context=2) == [[5, 6], [7, 8]]
    assert cut_windows([], start=[1], context=3) == []


def test_score_is_that_of_every_token_after_the_first_of_its_window(
    session_class, reference_logits
):
    digest, losses = hashlib.sha256(), []
    for window in windows():
        for i in range(len(window) - 1):
            logits = reference_logits(window[: i + 1])
            digest.update(logits.tobytes())
            probabilities = np.exp(logits.astype(np.float64))
            losses.append(-math.log(probabilities[window[i + 1]] / probabilities.sum()))
    result = score(session_class)
    assert result.logits_sha256 == digest.hexdigest()
    assert result.tokens == len(losses) == 100
    assert result.nll == pytest.approx(sum(losses) / 100, rel=1e-12)
    assert result.perplexity == pytest.approx(math.exp(sum(losses) / 100), rel=1e-12)


def test_chunks_and_batches_change_no_bit(session_class):
    scores = {
        score(session_class, chunk=chunk, batch=batch)
        for chunk, batch in itertools.product([1, 7, 32, 36], [1, 2, 3, 5])
    }
    assert len(scores) == 1


def test_progress_counts_windows(session_class):
    seen = []
    score(session_class, batch=2, progress=lambda done, value: seen.append((done, value > 0)))
    assert seen == [(2, True), (3, True)]


def test_log_likelihoods_of_huge_logits_do_not_overflow():
    logits = np.array([[1e30, 0.0], [0.0, 0.0]], np.float32)
    assert negative_log_likelihoods(logits, [0, 1]) == pytest.approx([0.0, math.log(2)])


@pytest.fixture
def run(monkeypatch, capsys, tmp_path, session_class, open_fake_model):
    class OneTokenPerLetter:
        @classmethod
        def from_files(cls, files):
            return cls()

        def encode(self, text, *, add_bos, parse_special):
            assert not parse_special
            return [1] * add_bos + [ord(letter) % 40 for letter in text]

    monkeypatch.setattr(perplexity, "open_model", open_fake_model)
    monkeypatch.setattr(perplexity, "Session", session_class)
    monkeypatch.setattr(perplexity, "Tokenizer", OneTokenPerLetter)
    path = tmp_path / "text.txt"

    def run_perplexity(content, **settings):
        path.write_bytes(content)
        perplexity.run(PerplexitySettings(file=str(path), **settings))
        return capsys.readouterr().out

    return run_perplexity


def test_json_has_the_promised_shape(run):
    report = json.loads(run(b"a long text " * 10, json=True, chars=100, context=20, threads=2))
    assert {"perplexity", "tokens", "logits_sha256", "nll"} <= set(report)
    assert report["tokens"] == 100
    assert report["windows"] == 6
    assert report["perplexity"] == pytest.approx(math.exp(report["nll"]))
    assert len(report["logits_sha256"]) == 64


def test_context_defaults_to_what_the_model_holds(run):
    assert "context        64" in run(b"a long text " * 10)


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (b"abc\xff", {}, r"--file: .*text\.txt is not UTF-8 text \(byte 3"),
        (b"", {}, "has 0 tokens; accepted: at least 2"),
        (b"abc", {"context": 65}, "--context: 65; accepted: the model's 64 at most"),
    ],
)
def test_what_cannot_be_scored_is_named(run, content, settings, message):
    with pytest.raises(SettingsError, match=message):
        run(content, **settings)


def test_missing_file_is_asked_for():
    with pytest.raises(SettingsError, match="--file: not given"):
        perplexity.run(PerplexitySettings())


def test_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"--file: .*gone: No such file"):
        perplexity.read_text(str(tmp_path / "gone"), None)


def test_text_is_cut_by_characters_not_bytes(tmp_path):
    (tmp_path / "t").write_text("äöü", encoding="utf-8")
    assert perplexity.read_text(str(tmp_path / "t"), 2) == "äö"
