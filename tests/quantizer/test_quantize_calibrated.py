"""``lanewise quantize --calibrate``: better weights, the same whatever interrupts it."""

import json
from contextlib import suppress

import numpy as np
import pytest

import tiny_models
from data_files import data
from lanewise import cli
from lanewise_quantizer.commands.calibrated import Calibrated
from topics import thorough

pytestmark = [pytest.mark.native, pytest.mark.slow, pytest.mark.usefixtures("library")]
SOME = ["--calibration-tokens", "512"]
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    model = tiny_models.tiny_model("llama2", **SIZES)
    return tiny_models.write_hf(model, tmp_path_factory.mktemp("source") / "m")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return tiny_models.write_text(tmp_path_factory.mktemp("text") / "text.txt")


def perplexity(model, text, capsys, *options):
    capsys.readouterr()
    assert cli.main(["perplexity", str(model), "--file", str(text), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)["perplexity"]


def test_calibration_lowers_perplexity_on_other_text(tmp_path, capsys):
    model = data("models/stories260K-hf")
    words = data("text/tinystories_val_yuninxia.txt").read_text()
    (tmp_path / "known.txt").write_text(words[100_000:200_000])
    (tmp_path / "held-out.txt").write_text(words[:20_000])
    found = {}
    for name, more in (
        ("plain", ["--calibrate", "none"]),
        ("fitted", ["--calibrate", str(tmp_path / "known.txt")]),
    ):
        options = ["-o", str(tmp_path / name), "--format", "cb2", *more]
        assert cli.main(["quantize", str(model), *options]) == 0
        found[name] = perplexity(tmp_path / name, tmp_path / "held-out.txt", capsys)
    assert found["fitted"] < 0.9 * found["plain"]


@pytest.mark.parametrize("stop_after", [9, *thorough(1)])
def test_an_interrupted_run_ends_with_the_same_bytes(
    source, text, tmp_path, monkeypatch, stop_after
):
    options = ["--format", "q4_0", "--calibrate", str(text), *SOME]
    assert cli.main(["quantize", str(source), "-o", str(tmp_path / "whole"), *options]) == 0
    keep, calls = Calibrated.keep, []

    def stop(self, *arguments):
        keep(self, *arguments)
        calls.append(arguments)
        if len(calls) == stop_after:
            raise KeyboardInterrupt

    monkeypatch.setattr(Calibrated, "keep", stop)
    cut = tmp_path / "cut"
    with suppress(KeyboardInterrupt):
        assert cli.main(["quantize", str(source), "-o", str(cut), *options]) != 0
    assert not cut.exists()
    assert len(calls) == stop_after
    assert cli.main(["quantize", str(source), "-o", str(cut), *options]) == 0
    matrices = 2 * 7 + 2
    assert len(calls) == matrices  # none was made twice
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (cut / path.name).read_bytes(), path.name


def test_other_text_does_not_go_on_with_half_a_model(source, text, tmp_path, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Calibrated, "known", stop)
        command = ["quantize", str(source), "-o", str(tmp_path / "out"), "--format", "q4_1", *SOME]
        with suppress(KeyboardInterrupt):
            cli.main([*command, "--calibrate", str(text)])
    other = tmp_path / "other.txt"
    other.write_text(text.read_text()[1000:])
    assert cli.main([*command, "--calibrate", str(other)]) != 0
    assert "calibration text" in capsys.readouterr().err


@pytest.mark.thorough
def test_gguf_holds_the_same_model(source, text, tmp_path, capsys):
    """Rows of Q and K lie in another order there."""
    options = ["--format", "q4_0", "--calibrate", str(text), *SOME]
    folder, file = tmp_path / "folder", tmp_path / "m.gguf"
    assert cli.main(["quantize", str(source), "-o", str(folder), *options]) == 0
    assert cli.main(["quantize", str(source), "-o", str(file), *options, "--gguf"]) == 0
    assert perplexity(file, text, capsys) == perplexity(folder, text, capsys)


def test_fewer_tokens_than_a_window_are_explained(source, text, tmp_path, capsys):
    out = tmp_path / "out"
    few = ["--calibrate", str(text), "--calibration-tokens", "100"]
    assert cli.main(["quantize", str(source), "-o", str(out), "--format", "q4_0", *few]) != 0
    assert "--calibration-tokens: 100; accepted: 256 at least" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has 0 tokens; accepted: 256 at least"),
        ("too short", "accepted: 256 at least"),
        (b"\xff\xfe\xff", "is not UTF-8 text"),
        (None, "No such file"),
    ],
)
def test_text_that_cannot_be_used_is_explained(source, tmp_path, capsys, content, message):
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    command = ["quantize", str(source), "-o", str(tmp_path / "out"), "--calibrate", str(file)]
    assert cli.main(command) != 0
    error = capsys.readouterr().err
    assert "--calibrate" in error
    assert message in error
    assert not list(tmp_path.glob("out*"))


def test_the_trellis_needs_text(source, tmp_path, capsys):
    command = ["quantize", str(source), "-o", str(tmp_path / "out"), "--format", "t2"]
    assert cli.main([*command, "--calibrate", "none"]) != 0
    assert "--calibrate: none; t2 needs a text" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--format", "fp6"], ["--format", "q4_0", "--head", "w8a8"]])
def test_rows_with_one_scale_take_no_text(source, tmp_path, text, capsys, options):
    command = ["quantize", str(source), "-o", str(tmp_path / "out"), "--calibrate", str(text)]
    assert cli.main([*command, *options]) != 0
    expected = f"--calibrate: {' '.join(options[-2:])} has no groups whose scales to fit"
    assert expected in capsys.readouterr().err


def test_weights_that_are_not_finite_are_named(tmp_path, text, capsys):
    model = tiny_models.tiny_model("llama2", **SIZES)
    model.tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = np.nan
    broken = tiny_models.write_hf(model, tmp_path / "broken")
    command = ["quantize", str(broken), "-o", str(tmp_path / "out"), "--calibrate", str(text)]
    command += SOME
    assert cli.main(command) != 0
    assert "up_proj.weight': row 3 holds NaN or infinity" in capsys.readouterr().err
