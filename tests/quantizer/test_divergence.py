"""What ``lanewise quantize`` says of its result: a word, measured as the result would be served."""

import errno
import os
import re
from pathlib import Path

import pytest

import tiny_models
from encoder_models import encoder_model
from family_models import write_model
from lanewise import cli
from lanewise.host import MemoryLimit
from lanewise.loading.checkpoints.hub import bundled_model
from lanewise_quantizer.commands import divergence
from lanewise_quantizer.commands.divergence import Divergence

pytestmark = [pytest.mark.native, pytest.mark.slow, pytest.mark.usefixtures("library")]
FOUND = re.compile(r": (\w+) \(mean ([\d.]+) nats, the same likeliest token in ([\d.]+)% of (\d+) ")
FORMAT = ("--format", "q4_0", "--calibrate", "none")


def quantize(capsys, output, *options, model=None, tokens="512"):
    """What is said of the bundled model's, or another one's, result."""
    source = model or bundled_model()
    command = ["quantize", str(source), "-o", str(output), "--check-tokens", tokens]
    command += options or FORMAT
    assert cli.main(command) == 0
    return capsys.readouterr().out.splitlines()[-1]


def test_the_word_grows_with_what_is_lost(tmp_path, capsys):
    words, kls = [], []
    for name in ("q8_0", "q5_0", "q4_0", "cb2"):
        options = ["--format", name, "--head", name, "--calibrate", "none"]
        word, kl, top1, positions = FOUND.search(
            quantize(capsys, tmp_path / name, *options)
        ).groups()
        words.append(word)
        kls.append(float(kl))
        assert int(positions) == 2 * 255
        assert float(top1) == 100 or kls[-1] > 0
    assert kls[0] == 0  # the source's own bytes
    assert kls == sorted(kls)
    assert words == ["fine", "fine", "fine", "heavy"]


@pytest.mark.parametrize(
    ("kl", "word"), [(0.0, "fine"), (0.021, "noticeable"), (0.16, "heavy"), (0.71, "broken")]
)
def test_words(kl, word):
    assert Divergence(kl, 0.9, 100).word == word


def test_no_tokens_no_check(tmp_path, capsys):
    assert "divergence" not in quantize(capsys, tmp_path / "out", tokens="0")


def test_a_slow_model_is_measured_on_less(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(divergence, "MAX_S", 0.0)
    assert " of 255 places " in quantize(capsys, tmp_path / "out")


def test_a_model_that_takes_most_of_the_memory_is_not_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(divergence, "memory_limit", lambda: MemoryLimit(1 << 20, "a test", True))
    line = quantize(capsys, tmp_path / "out")
    assert re.search(r"not measured: .* MiB of weights, 1.00 MiB of memory", line)
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_disk_without_room_for_logits_is_told(tmp_path, capsys, monkeypatch):
    """The result is whole all the same."""

    def full(**_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(divergence.tempfile, "TemporaryFile", full)
    assert "not measured: No space left on device" in quantize(capsys, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_model_without_finite_logits_is_told(tmp_path, capsys):
    made = tiny_models.tiny_model("llama2", hidden_size=64, intermediate_size=64)
    made.tensors["model.layers.0.post_attention_layernorm.weight"][:] = 1e20
    model = tiny_models.write_hf(made, tmp_path / "model")
    line = quantize(capsys, tmp_path / "out", "--format", "q8_0", model=model)
    assert re.search(r"not measured: .*: its logits are NaN or infinite", line)


def test_a_model_that_makes_vectors_has_no_predictions(tmp_path):
    source = write_model(encoder_model("bert"), tmp_path / "model")
    (line,) = divergence.divergence_lines(source, tmp_path / "out.gguf", 512, 1, Path)
    assert "not measured" in line
    assert "it makes vectors, and has no predictions to compare" in line


# What the quantizer uses of llama-cpp-python, by the documents of its package.
PACKAGE = """
import ctypes
from lanewise import cli

class llama_model_quantize_params(ctypes.Structure):
    _fields_ = [("nthread", ctypes.c_int32), ("ftype", ctypes.c_int),
                ("allow_requantize", ctypes.c_bool)]

def llama_model_quantize_default_params():
    return llama_model_quantize_params()

def llama_model_quantize(source, output, params):
    kind = {3: "q4_1", 7: "q8_0"}[params._obj.ftype]
    assert params._obj.allow_requantize
    options = ["--gguf", "--format", kind, "--head", "q8_0", "--check-tokens", "0"]
    return cli.main(["quantize", source.decode(), "-o", output.decode(), *options])
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A stand-in for llama.cpp's package, which this process and others find."""
    (tmp_path / "packages").mkdir()
    module = tmp_path / "packages" / "llama_cpp.py"
    module.write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(module.parent))
    monkeypatch.setenv("PYTHONPATH", str(module.parent))
    return module


def test_llama_cpps_nearest_type_is_measured_beside(package, tmp_path, capsys):
    made = tiny_models.tiny_model("llama2", hidden_size=64, intermediate_size=64)
    model = tiny_models.write_hf(made, tmp_path / "model")
    line = quantize(capsys, tmp_path / "out", "--format", "iq4_nl", "--head", "q8_0", model=model)
    found = re.search(r"llama.cpp's Q4_1, (\S+) bits per weight, .*: mean (\S+) nats", line)
    assert found is not None, line
    assert float(found[2]) > 0
    package.write_text("raise ImportError('broken')")
    line = quantize(capsys, tmp_path / "again", "--format", "q8_0", model=model)
    assert line == "llama.cpp's Q8_0: its package could not make it of floats.gguf"
    assert sorted(path.name for path in tmp_path.glob(".*")) == []
