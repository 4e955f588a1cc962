"""``lanewise compare``: every number of the table is what it says, from real files and models."""

import json
import math
import sys

import numpy as np
import pytest

import tiny_models
import topics
from lanewise import cli
from lanewise.commands import compare as compare_module
from lanewise.commands.compare import with_front
from lanewise.commands.compared import Compared
from lanewise.commands.perplexity import kl_divergences

WORDS = 700
OPTIONS = ["--tokens", "600", "--context", "64"]
QUICK = [*OPTIONS, "--prefill", "0", "--decode", "0"]


def row(size, perplexity):
    return Compared("m", "m", "q4_0", size, 4.5, perplexity)


def test_divergence_is_the_sum_over_the_vocabulary():
    expected, found = (
        np.random.default_rng(seed).standard_normal((3, 50)).astype(np.float32) for seed in (1, 2)
    )
    for p_row, q_row, value in zip(expected, found, kl_divergences(expected, found), strict=True):
        p_sum, q_sum = (sum(math.exp(x) for x in part) for part in (p_row, q_row))
        total = 0.0
        for p, q in zip(p_row, q_row, strict=True):
            share = math.exp(p) / p_sum
            total += share * math.log(share / (math.exp(q) / q_sum))
        assert value == pytest.approx(total, rel=1e-9)
    assert kl_divergences(expected, expected) == [0.0] * 3
    assert kl_divergences(expected + 1000, expected) == pytest.approx([0.0] * 3, abs=1e-6)


def test_the_front_is_what_nothing_else_beats_in_both():
    rows = [row(100, 3.0), row(50, 4.0), row(60, 4.0), row(40, 5.0), row(45, 6.0), row(100, 3.0)]
    assert [r.on_front for r in with_front(rows)] == [True, True, False, True, False, True]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model, and two quantized forms of it."""
    folder = tmp_path_factory.mktemp("models")
    model = tiny_models.tiny_model("llama2", hidden_size=64, intermediate_size=64)
    original = tiny_models.write_hf(model, folder / "original")
    for name in ("q8_0", "q4_0"):
        options = ["--format", name, "--head", "q8_0"]
        assert cli.main(["quantize", str(original), "-o", str(folder / name), *options]) == 0
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return tiny_models.write_text(tmp_path_factory.mktemp("text") / "text.txt", WORDS)


def compare(capsys, text, *arguments):
    capsys.readouterr()
    assert cli.main(["compare", *map(str, arguments), "--file", str(text), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def error_of(capsys, *arguments):
    capsys.readouterr()
    assert cli.main(["compare", *map(str, arguments)]) != 0
    return capsys.readouterr().err


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_the_report_agrees_with_perplexity_and_inspect(models, text, capsys):
    names = ["original", "q8_0", "q4_0"]
    report = compare(capsys, text, *(models / name for name in names), *OPTIONS, "--repeat", "1")
    rows = report["models"]
    assert [r["name"] for r in rows] == names
    assert report["reference"] == str(models / "original")
    assert rows[0]["kl"] is None
    assert 0 < rows[1]["kl"] < rows[2]["kl"] / 4
    assert rows[1]["top1"] > rows[2]["top1"] > 0.3
    for found in rows:
        path = models / found["name"]
        chars = str(len(text.read_text()[:600]))  # a byte-level tokenizer: a character a token
        options = ["--file", str(text), "--chars", chars, "--context", "64", "--json"]
        assert cli.main(["perplexity", str(path), *options]) == 0
        alone = json.loads(capsys.readouterr().out)
        assert found["perplexity"] == pytest.approx(alone["perplexity"], rel=1e-12)
        assert found["weights"] == alone["weights"]
        assert found["bytes"] == (path / "model.safetensors").stat().st_size
        assert cli.main(["inspect", str(path), "--json"]) == 0
        weights = json.loads(capsys.readouterr().out)["weights"]
        assert found["bits_per_weight"] == pytest.approx(8 * found["bytes"] / weights)
        assert found["prefill"] > 0
        assert found["decode"] > 0
    assert rows[0]["on_front"]


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_a_copy_of_the_original_is_equal_to_it(models, text, tmp_path, capsys):
    model = tiny_models.tiny_model("llama2", hidden_size=64, intermediate_size=64)
    copy = tiny_models.write_hf(model, tmp_path / "copy")
    options = ["--reference", models / "original", *QUICK]
    (first, second) = compare(capsys, text, copy, *options)["models"]
    assert (first["name"], second["name"]) == ("original", "copy")
    assert (second["kl"], second["kl_error"], second["top1"]) == (0.0, 0.0, 1.0)
    assert second["perplexity"] == first["perplexity"]
    assert second["prefill"] is None


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_one_model_against_its_own_float_activations(models, text, capsys):
    path = models / "q8_0"
    (exact, served) = compare(capsys, text, path, "--float-activations", *QUICK)["models"]
    assert [exact["name"], served["name"]] == ["q8_0, float activations", "q8_0"]
    assert [exact["activations"], served["activations"]] == ["float", "int8"]
    assert [exact["on_front"], served["on_front"]] == [False, True]
    assert exact["kl"] is None
    assert exact["prefill"] is exact["decode"] is None
    assert 0 < served["kl"] < served["kl_p99"] < 0.1
    assert 0.8 < served["top1"] <= 1
    for row in (exact, served):
        options = ["--file", str(text), "--chars", "600", "--context", "64", "--json"]
        options += ["--float-activations"] * (row is exact)
        assert cli.main(["perplexity", str(path), *options]) == 0
        alone = json.loads(capsys.readouterr().out)
        assert alone["activations"] == row["activations"]
        assert row["perplexity"] == pytest.approx(alone["perplexity"], rel=1e-12)
    assert exact["perplexity"] != served["perplexity"]


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_one_model_against_itself_with_other_caches(models, text, capsys):
    options = ["--caches", "f16,int8,q4", "--kv-cache-dtype", "f16", *OPTIONS]
    rows = compare(capsys, text, models / "original", *options)["caches"]
    assert [row["kv_type"] for row in rows] == ["f16", "int8", "q4"]
    assert [row["token_bytes"] for row in rows] == sorted(
        (row["token_bytes"] for row in rows), reverse=True
    )
    assert rows[0]["kl"] is None
    assert 0 < rows[1]["kl"] < rows[2]["kl"] < 0.1
    for row in rows:
        scored = ["--file", str(text), "--chars", "600", "--context", "64", "--json"]
        scored += ["--kv-cache-dtype", row["kv_type"]]
        assert cli.main(["perplexity", str(models / "original"), *scored]) == 0
        alone = json.loads(capsys.readouterr().out)
        assert row["positions"] == alone["tokens"]
        assert row["perplexity"] == pytest.approx(alone["perplexity"], rel=1e-12)
    some = compare(capsys, text, models / "original", *options, "--after", "40", "--every", "5")
    windows = [64] * (600 // 63)  # with the start token; the last one is shorter than 40
    assert some["caches"][0]["positions"] == len(windows) * len(range(40, 63, 5))
    error = error_of(capsys, models / "original", *options, "--file", text, "--after", "63")
    assert "--after: 63 with windows of 64 tokens" in error


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_float_weights_have_float_activations_already(models, text, capsys):
    options = [models / "original", models / "q4_0", "--float-activations", *QUICK]
    report = compare(capsys, text, *options)
    assert [r["name"] for r in report["models"]] == [
        *("original, float activations", "original", "q4_0")
    ]
    first, second, third = report["models"]
    assert (second["kl"], second["kl_p99"], second["top1"]) == (0.0, 0.0, 1.0)
    assert second["perplexity"] == first["perplexity"]
    assert third["kl"] > 0


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_the_table_and_the_picture(models, text, tmp_path, capsys):
    topics.module("matplotlib", "picture")
    arguments = [models / "original", models / "q4_0", "--file", text, *QUICK]
    for name in ("front", "again.png"):
        capsys.readouterr()
        picture = ["--picture", tmp_path / name]
        assert cli.main(["compare", *map(str, [*arguments, *picture])]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["model", "type", "size", "bits"]
    assert lines[1].split()[:2] == ["original", "f32"]
    assert lines[2].split()[:2] == ["q4_0", "q4_0"]
    assert lines[3:] == [f"drawn: {tmp_path / 'again'}.{kind}" for kind in ("png", "svg")]
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    drawn = (tmp_path / "front.svg").read_text()
    assert "<svg" in drawn
    assert "<!-- q4_0 -->" in drawn
    assert drawn == (tmp_path / "again.svg").read_text()


def test_a_picture_without_matplotlib_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = error_of(capsys, "a", "b", "--file", "x", "--picture", tmp_path / "p.png")
    assert "pip install matplotlib" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "MODEL: 0 given; accepted: 2 or more, the original first"),
        (["a"], "MODEL: 1 given; accepted: 2 or more"),
        (["--float-activations"], "MODEL: 0 given; accepted: 1 or more"),
        (["a", "b", "a"], "MODEL: a given twice"),
        (["--caches", "int8"], "MODEL: 0 given; accepted: 1 or more"),
        (["a", "b", "--picture", "/nowhere/x.png"], "--picture: /nowhere: no such directory"),
        (["a", "b", "--file", "/nowhere/x.txt"], "--file: /nowhere/x.txt: No such file"),
    ],
)
def test_what_cannot_be_compared_is_explained(capsys, arguments, message):
    assert message in error_of(capsys, *arguments)


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_models_of_other_tokens_are_refused(models, text, tmp_path, capsys):
    model = tiny_models.tiny_model("llama2")
    other = tiny_models.write_hf(model, tmp_path / "other")
    path = other / "tokenizer.json"
    path.write_text(path.read_text().replace('"Ġ": ', '"~~": '))
    message = error_of(capsys, models / "original", other, "--file", text, *QUICK)
    assert "its tokenizer cuts the text otherwise than the original's" in message


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_a_model_that_is_missing_is_said_before_one_is_measured(
    models, text, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(compare_module, "score", lambda *_, **__: pytest.fail("a model is scored"))
    missing = str(tmp_path / "none.gguf")
    arguments = [str(models / "original"), missing, "--file", str(text), *QUICK]
    assert missing in error_of(capsys, *arguments)
