"""``lanewise quantize --bits N``: a type for each matrix, and a file of the size asked for."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import tiny_models
from data_files import data
from lanewise import cli
from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.names import is_vector
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise_quantizer.commands import quantize as command
from lanewise_quantizer.commands.bits import Wanted, reason
from lanewise_quantizer.commands.partial_output import PartialOutput
from lanewise_quantizer.fit.layer import matrices_of
from lanewise_quantizer.fit.sensitivity import COSTS, Probed, losses_on_text
from lanewise_quantizer.fit.source import Source
from quantizing import written_family
from topics import thorough

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    model = tiny_models.tiny_model("llama2", **SIZES)
    return tiny_models.write_hf(model, tmp_path_factory.mktemp("source") / "m")


def quantize(source, out, *options) -> Path:
    assert cli.main(["quantize", str(source), "-o", str(out), *map(str, options)]) == 0
    return out


def bits_of(path: Path) -> float:
    """Bits per weight, header, vectors and all."""
    file = path / "model.safetensors" if path.is_dir() else path
    with open_checkpoint(path) as checkpoint:
        weights = sum(tensor.rows * tensor.cols for tensor in checkpoint.tensors)
    return 8 * file.stat().st_size / weights


def types_of(path: Path) -> set[str]:
    with open_checkpoint(path) as checkpoint:
        return {tensor.type.name.lower() for tensor in checkpoint.tensors if tensor.rows > 1}


def perplexity(capsys, model: Path, text: Path, *options: str) -> float:
    capsys.readouterr()
    assert cli.main(["perplexity", str(model), "--file", str(text), "--json", *options]) == 0
    return float(json.loads(capsys.readouterr().out)["perplexity"])


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("bits", [3.5, *thorough(2.8, 5.25)])
def test_the_file_has_the_bits_asked_for(source, tmp_path, bits):
    out = quantize(source, tmp_path / "out", "--bits", bits, "--calibrate", "none")
    assert 0.99 * bits <= bits_of(out) <= bits
    assert len(types_of(out)) > 1
    about = json.loads((out / "config.json").read_text())["quantization_config"]
    assert (about["format"], about["bits"]) == ("mixed", bits)


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.thorough
def test_gguf_and_a_head_of_its_own(source, tmp_path):
    out = quantize(source, tmp_path / "out.gguf", "--bits", 5, "--gguf", "--head", "q8_0")
    assert 0.99 * 5 <= bits_of(out) <= 5
    with open_checkpoint(out) as checkpoint:
        names = {t.name: t.type.name for t in checkpoint.tensors}
    assert names["token_embd.weight"] == names["output.weight"] == "Q8_0"


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.thorough
def test_text_decides_by_what_the_model_does_with_it(tmp_path):
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2}
    source = tiny_models.write_hf(tiny_models.tiny_model("llama2", **sizes), tmp_path / "source")
    text = tiny_models.write_text(tmp_path / "text.txt")
    options = ["--calibrate", text, "--calibration-tokens", 256]
    out = quantize(source, tmp_path / "out", "--bits", 3.5, *options)
    assert 0.99 * 3.5 <= bits_of(out) <= 3.5
    assert cli.main(["perplexity", str(out), "--file", str(text), "--chars", "300"]) == 0


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("name", ["qwen3_moe", "gemma4_small"])
def test_progress_ends_at_all_steps(name, tmp_path):
    with open_checkpoint(written_family(name, tmp_path)) as checkpoint:
        source, done = Source(checkpoint), []
        matrices = [t for t in checkpoint.tensors if not is_vector(t.role)]
        types = {(t.role, t.layer): ["q8_0" if t.cols % 32 == 0 else "f16"] for t in matrices}
        ids = np.arange(64).reshape(1, 64) + 3
        losses = losses_on_text(source, ids, types, lambda: done.append(1))
    assert losses.keys() == types.keys()
    assert len(done) == 2 * len(types)


def test_every_matrix_has_a_cost():
    assert not [role.name for role in Role if not is_vector(role) and role not in COSTS]


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_mixed_types_beat_the_uniform_one_of_the_same_size(tmp_path, capsys):
    model, stories = data("models/stories3M-hf"), data("text/tinystories_val_yuninxia.txt")
    without = ("--calibrate", "none")
    uniform = quantize(model, tmp_path / "uniform", "--format", "cb3", "--head", "cb3", *without)
    mixed = quantize(model, tmp_path / "mixed", "--bits", bits_of(uniform), *without)
    assert bits_of(mixed) <= bits_of(uniform)
    chars = ("--chars", "12000")
    found = [perplexity(capsys, path, stories, *chars) for path in (mixed, uniform)]
    assert found[0] < 0.95 * found[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bits", "0.5"], "--bits: '0.5' cannot be used; accepted: a number from 1 to 16"),
        (["--bits", "nan"], "accepted: a number from 1 to 16"),
        (["--bits", "3", "--format", "q4_0"], "--bits: given beside --format"),
    ],
)
def test_bits_that_cannot_be_are_explained(source, tmp_path, capsys, options, message):
    assert cli.main(["quantize", str(source), "-o", str(tmp_path / "out"), *options]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.thorough
def test_the_range_that_a_model_can_have_is_named(source, tmp_path, capsys):
    for bits in ("1.5", "16"):
        command = ["quantize", str(source), "-o", str(tmp_path / "out"), "--bits", bits]
        command += ["--calibrate", "none"]
        if bits == "16":
            command += ["--gguf"]
        assert cli.main([*command, "--head", "q4_k"]) != 0
        assert "accepted for this model, whole file counted: 2." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("loss", "most_bytes", "told"),
    [
        (0.04, None, "the fewest that should lose at most 0.05"),
        (0.06, None, "the most that a file of this model can have"),
        (0.06, 3 << 30, "where 0.05 were wanted: half of this machine's memory is 3.00 GiB"),
    ],
)
def test_the_reason_is_told(loss, most_bytes, told):
    assert told in reason(4.5, loss, Wanted(None, False, kl=0.05, most_bytes=most_bytes))


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_who_asks_for_nothing_gets_the_bits_that_the_model_needs(source, tmp_path, capsys):
    short = ("--calibration-tokens", 256, "--check-tokens", 0)
    chosen = quantize(source, tmp_path / "chosen", *short)
    said = capsys.readouterr().err
    assert "the fewest that should lose at most 0.05" in said
    sizes = re.search(r"so many should lose: (.*)", said)[1]
    losses = [float(one.split(": ")[1]) for one in sizes.split(", ")]
    assert len(losses) > 3
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1]
    about = json.loads((chosen / "config.json").read_text())["quantization_config"]
    assert (about["format"], about["target_kl"]) == ("mixed", 0.05)
    worse = quantize(source, tmp_path / "worse", *short, "--target-kl", 5)
    assert bits_of(worse) < bits_of(chosen)


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_an_interrupted_run_does_not_measure_again(source, tmp_path, monkeypatch):
    options = ["--bits", "4", "--calibrate", "none", "--check-tokens", "0"]
    whole, cut = quantize(source, tmp_path / "whole", *options), tmp_path / "cut"
    with monkeypatch.context() as killed:
        killed.setattr(PartialOutput, "mark_done", lambda *_: (_ for _ in ()).throw(MemoryError))
        assert cli.main(["quantize", str(source), "-o", str(cut), *options]) == 1
    asked = []
    real = command.allocate
    monkeypatch.setattr(command, "allocate", lambda *all_: asked.append(1) or real(*all_))
    other = ["quantize", str(source), "-o", str(cut), *options, "--head", "q8_0"]
    assert cli.main(other) == 1  # measured, and refused: the other run's half lies there
    assert len(asked) == 1
    quantize(source, cut, *options)
    assert len(asked) == 1
    for path in whole.iterdir():
        assert path.read_bytes() == (cut / path.name).read_bytes(), path.name


@pytest.mark.native
@pytest.mark.usefixtures("library")
def test_a_model_that_is_not_measured_gets_four_bits(source, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "MEASURED_WEIGHTS", 1e5)
    out = quantize(source, tmp_path / "out", "--check-tokens", 0)
    assert "--format q4_0: what 0 billion weights lose takes hours" in capsys.readouterr().err
    assert "q4_0" in types_of(out)


@pytest.mark.parametrize("name", ["qwen3_moe", "gemma4_small"])
def test_probes_of_a_layer_lose_together_what_each_loses_alone(name, tmp_path):
    """Also with rows of a table beside each layer, and keys that later layers read."""
    with open_checkpoint(written_family(name, tmp_path)) as checkpoint:
        source = Source(checkpoint)
        probed = Probed(source, np.arange(2 * 32).reshape(2, 32) % 250)
        for layer in range(source.config.n_layers):
            roles = [role for role in matrices_of(source.config, layer) if role != Role.ROUTER]
            keys = [(role, layer) for role in roles]
            alone = [probed.divergences([key])[0] for key in keys]
            assert probed.divergences(keys) == pytest.approx(alone, rel=1e-3, abs=1e-9)
            assert max(alone) > 1e-6
