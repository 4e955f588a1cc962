"""``lanewise quantize`` starts from every kind of file that can be served."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import packed_by_others
import tiny_models
from lanewise import cli
from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.names import ORDERS
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.settings import QUANTIZED_FORMATS
from lanewise_quantizer.commands.sources import open_source
from lanewise_quantizer.fit.forward import run
from lanewise_quantizer.fit.source import Source
from lanewise_quantizer.gguf_blocks import LAYOUTS
from quantizing import logits_of, quantize

pytestmark = [pytest.mark.native, pytest.mark.slow, pytest.mark.usefixtures("library")]
SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
BY_OTHERS = {
    "gptq": ("gptq", {}),
    "gptq act-order": ("gptq", {"act_order": True}),
    "gptq 8 bits": ("gptq", {"bits": 8, "group": 32}),
    "awq": ("awq", {}),
}
FORMATS = [name for name in QUANTIZED_FORMATS if name != "t2"]  # it needs text, and so seconds
PROMPT = tiny_models.prompt(40)
# The likeliest token at places of PROMPT where it is so by far (half a deviation of the logits), of
# the model calibrated from each source. What changes calibration changes some; other machines none.
TOKENS = {
    "q4_k": {28: 101, 30: 150, 31: 241, 35: 40},
    "q4_1": {16: 37, 28: 101, 30: 150, 31: 241, 38: 36},
    "iq4_xs": {10: 88, 19: 92, 28: 101, 30: 150, 31: 241, 35: 40, 39: 122},
    "mxfp4": {16: 122, 18: 21, 19: 92, 23: 168, 28: 101, 31: 241, 34: 120, 35: 40},
    "gptq act-order": {0: 0, 2: 76, 3: 114, 7: 14, 10: 136, 14: 47, 16: 133, 17: 127, 20: 54},
    "awq": {0: 0, 1: 52, 2: 76, 3: 114, 7: 14, 14: 47, 16: 133, 17: 127, 22: 144},
}


@pytest.fixture(scope="module")
def floats(tmp_path_factory) -> Path:
    model = tiny_models.tiny_model("llama2", **SIZES)
    return tiny_models.write_hf(model, tmp_path_factory.mktemp("floats") / "m")


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return tiny_models.write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def source(tmp_path_factory, floats) -> Callable[[str], Path]:
    """Makes the model as a GGUF file of a type, or as other programs quantize, when asked for."""
    folder = tmp_path_factory.mktemp("sources")
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name in made:
            return made[name]
        if name in BY_OTHERS:
            method, options = BY_OTHERS[name]
            made[name] = packed_by_others.write_model(folder / name, method, **options).packed
        elif name in LAYOUTS:
            made[name] = folder / f"{name}.gguf"
            assert quantize(floats, made[name], "--format", name, "--gguf") == 0
        else:
            made[name] = folder / name
            assert quantize(floats, made[name], "--format", name) == 0
        return made[name]

    return make


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.thorough
@pytest.mark.parametrize("name", TOKENS)
def test_calibration_starts_from_it_and_ends_the_same_each_time(
    name, source, text, tmp_path, capsys
):
    options = ["--format", "q4_0", "--calibrate", str(text), "--calibration-tokens", "512"]
    found = []
    for out in (tmp_path / "one", tmp_path / "two"):
        assert cli.main(["quantize", str(source(name)), "-o", str(out), *options]) == 0
        found.append(logits_of(out))
    assert found[0].tobytes() == found[1].tobytes()
    assert "its weights are quantized already, to " in capsys.readouterr().err
    likeliest = found[0].argmax(axis=1)
    assert {place: likeliest[place] for place in TOKENS[name]} == TOKENS[name]
    # Twice rounded to four bits, 0.14 to 0.32; wrong weights give about 1.4.
    assert distance(found[0], logits_of(source(name))) < 0.5


@pytest.mark.parametrize("name", [*FORMATS, *BY_OTHERS])
def test_every_type_is_read_as_the_library_decodes_it(name, source):
    """Matrices as float32 give the logits of the model with float activations."""
    path = source(name)
    with open_source(path) as checkpoint:
        read = Source(checkpoint)
        tensors = [t for t in checkpoint.tensors if t.role not in ORDERS]
        hidden = run(checkpoint.config, read, np.array(PROMPT)[None])[0]
        tied = checkpoint.config.tied_embeddings
        found = hidden @ read(Role.TOKEN_EMBEDDING if tied else Role.OUTPUT).T
        assert all(np.isfinite(read(t.role, t.layer)).all() for t in tensors)
    expected = logits_of(path, float_activations=True)
    assert distance(found, expected) < 1e-5


@pytest.mark.parametrize("name", [*FORMATS, "gptq act-order"])
def test_a_packed_model_is_quantized_as_what_was_packed(name, source, tmp_path):
    """Its matrices are the same rows, bit for bit, whatever they become and if they are kept."""
    packed = tmp_path / "packed"
    assert cli.main(["pack", str(source(name)), "-o", str(packed)]) == 0
    with open_source(source(name)) as was, open_source(packed) as now:
        assert [t.role for t in was.tensors] == [t.role for t in now.tensors]
        for one, other in zip(was.tensors, now.tensors, strict=True):
            assert (one.type, one.table) == (other.type, other.table)
            if not one.rope_heads:
                assert bytes(one.data) == bytes(other.data), one.name
    weights = []
    for start in (source(name), packed):
        out = tmp_path / f"q{len(weights)}"
        assert cli.main(["quantize", str(start), "-o", str(out), "--format", "q8_0"]) == 0
        weights.append((out / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


@pytest.mark.parametrize("name", ["q4_k", "cb3", "gptq act-order"])
@pytest.mark.thorough
def test_a_packed_model_is_calibrated_as_what_was_packed(name, source, text, tmp_path):
    packed = tmp_path / "packed"
    assert cli.main(["pack", str(source(name)), "-o", str(packed)]) == 0
    options = ["--format", "q4_0", "--calibrate", str(text), "--calibration-tokens", "256"]
    found = []
    for start in (source(name), packed):
        out = tmp_path / f"q{len(found)}"
        assert cli.main(["quantize", str(start), "-o", str(out), *options]) == 0
        found.append(logits_of(out).tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("calibrate", [False, True])
def test_a_type_with_a_table_stays_as_it_is(source, text, tmp_path, capsys, calibrate):
    options = ["--format", "cb3", "--head", "q8_0"]
    options += ["--calibrate", str(text), "--calibration-tokens", "256"] if calibrate else []
    assert cli.main(["quantize", str(source("cb3")), "-o", str(tmp_path / "q"), *options]) == 0
    with open_checkpoint(source("cb3")) as was, open_checkpoint(tmp_path / "q") as now:
        for one, other in zip(was.tensors, now.tensors, strict=True):
            if one.role not in (Role.TOKEN_EMBEDDING, Role.OUTPUT):
                assert (one.table, bytes(one.data)) == (other.table, bytes(other.data)), one.name
    assert "6.56 bits (q6_k)" in capsys.readouterr().err  # the head alone


def test_bits_are_allocated_to_a_packed_model(source, tmp_path):
    packed = tmp_path / "packed"
    assert cli.main(["pack", str(source("q4_k")), "-o", str(packed)]) == 0
    assert cli.main(["quantize", str(packed), "-o", str(tmp_path / "q"), "--bits", "4.6"]) == 0
    assert np.isfinite(logits_of(tmp_path / "q")).all()


def test_models_of_many_bits_are_quantized_without_a_warning(source, tmp_path, capsys):
    for name in ("q8_0", "w8a8", "gptq 8 bits"):
        assert quantize(source(name), tmp_path / name, "--format", "q4_0") == 0
    assert "quantized already" not in capsys.readouterr().err


def test_a_damaged_packed_model_is_refused(source, tmp_path, capsys):
    packed = tmp_path / "packed"
    assert cli.main(["pack", str(source("q4_0")), "-o", str(packed)]) == 0
    weights = packed / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    output = tmp_path / "q"
    assert cli.main(["quantize", str(packed), "-o", str(output), "--format", "q8_0"]) == 1
    assert "checksum" in capsys.readouterr().err
    assert not output.exists()


def test_a_packed_model_of_another_version_is_refused(source, tmp_path, capsys):
    packed = tmp_path / "packed"
    assert cli.main(["pack", str(source("q4_0")), "-o", str(packed)]) == 0
    weights = packed / "model.safetensors"
    data = weights.read_bytes()
    where = data.index(b'"numerics":"') + len(b'"numerics":"')
    weights.write_bytes(data[:where] + b"1" + data[where + 1 :])
    assert cli.main(["quantize", str(packed), "-o", str(tmp_path / "q")]) == 1
    assert "make it again from the original" in capsys.readouterr().err


def test_gguf_files_are_written_from_packed_models(source, tmp_path):
    packed, file = tmp_path / "packed", tmp_path / "q.gguf"
    assert cli.main(["pack", str(source("q4_k")), "-o", str(packed)]) == 0
    options = ["--format", "q8_0", "--gguf"]
    assert cli.main(["quantize", str(packed), "-o", str(file), *options]) == 0
    assert cli.main(["quantize", str(packed), "-o", str(tmp_path / "q"), *options[:2]]) == 0
    assert logits_of(file).tobytes() == logits_of(tmp_path / "q").tobytes()


def test_perplexity_and_compare_take_every_source(source, text, tmp_path, capsys):
    names = ["q4_k", "cb3", "packed"]
    assert cli.main(["pack", str(source("cb3")), "-o", str(tmp_path / "packed")]) == 0
    paths = [str(tmp_path / "packed" if name == "packed" else source(name)) for name in names]
    options = ["--file", str(text), "--json"]
    scores = []
    for path in paths:
        capsys.readouterr()
        assert cli.main(["perplexity", path, *options, "--chars", "1000"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["logits_sha256"])
    assert scores[1] == scores[2] != scores[0]
    speed = ["--prefill", "16", "--decode", "8", "--repeat", "1", "--tokens", "256"]
    assert cli.main(["compare", *paths, *options, *speed]) == 0
    rows = json.loads(capsys.readouterr().out)["models"]
    assert [row["weights"] for row in rows] == ["q4_k", "cb3", "cb3"]
    assert rows[1]["kl"] == rows[2]["kl"] > 0
