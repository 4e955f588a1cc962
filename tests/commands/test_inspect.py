"""``lanewise inspect``: every kind of file, totals that add up, and damage that --check finds."""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tiny_models
from family_models import write_case
from gguf_values import write_out
from lanewise import cli
from lanewise.loading.checkpoints.opening import open_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    changes = {"hidden_size": 64, "intermediate_size": 96}
    made = tiny_models.tiny_model("llama2", **changes)
    return tiny_models.write_hf(made, tmp_path_factory.mktemp("model") / "m")


@pytest.fixture(scope="module")
def quantized(model, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("quantized") / "q"
    assert (
        cli.main(
            [
                "quantize",
                str(model),
                "-o",
                str(output),
                "--format",
                "cb2",
                "--calibrate",
                "none",
                "--check-tokens",
                "0",
            ]
        )
        == 0
    )
    return output


def inspect(capsys, path: Path, *options: str, status: int = 0) -> dict:
    capsys.readouterr()
    assert cli.main(["inspect", str(path), "--json", *options]) == status
    return json.loads(capsys.readouterr().out)


def check_totals(report: dict) -> None:
    for key in ("weights", "bytes"):
        assert report[key] == sum(row[key] for row in report["types"].values())
    assert report["bytes"] == sum(tensor["bytes"] for tensor in report["tensors"])
    assert report["weights"] == sum(int(np.prod(t["shape"])) for t in report["tensors"])
    assert report["bits_per_weight"] == pytest.approx(8 * report["bytes"] / report["weights"])


def test_hugging_face(capsys, model):
    report = inspect(capsys, model, "--check")
    check_totals(report)
    assert (report["kind"], set(report["types"]), report["problems"]) == (
        "Hugging Face",
        {"f32"},
        [],
    )
    shapes = {tensor["name"]: tensor["shape"] for tensor in report["tensors"]}
    assert shapes["model.layers.0.mlp.up_proj.weight"] == [96, 64]


@pytest.mark.native
@pytest.mark.usefixtures("library")
def test_inputs_that_stand_out_are_found(capsys, tmp_path):
    """One weight of a norm makes one input a hundred times larger than the others."""
    source = tiny_models.tiny_model("llama2", hidden_size=64, intermediate_size=96)
    for planted in (False, True):
        folder = tmp_path / str(planted)
        if planted:
            norm = source.tensors["model.layers.2.input_layernorm.weight"]
            norm[37] *= 100
        report = inspect(capsys, tiny_models.write_hf(source, folder), "--outliers")
        rows = {row["inputs_of"]: row for row in report["outliers"]}
        assert list(rows) == ["Q, K and V", "attention output", "gate and up", "down", "head"]
        assert rows["head"]["layer"] is None
        unusual = [name for name, row in rows.items() if row["unusual"]]
        assert unusual == (["Q, K and V"] if planted else [])
        row = rows["Q, K and V"]
        assert row["times_mean"] == pytest.approx(row["largest"] / row["mean"])
        if planted:
            assert (row["layer"], row["input"]) == (2, 37)
            assert row["times_mean"] > 40
            assert 0.1 < row["outlier_groups"] < 1 / 6 + 1e-9  # half of one layer's three
        assert cli.main(["inspect", str(folder), "--outliers"]) == 0
        out = capsys.readouterr().out
        assert ("outliers: unusual, of Q, K and V: what int8" in out) == planted
        assert ("outliers: as usual" in out) != planted


@pytest.mark.parametrize("name", ["qwen3_moe", "nemotron_h_moe"])
def test_inputs_of_mixtures_that_stand_out_are_found(capsys, tmp_path, name):
    """All layers have experts: of their down projections nothing is reported."""
    report = inspect(capsys, write_case(name, tmp_path / "m"), "--outliers")
    kinds = [row["inputs_of"] for row in report["outliers"]]
    assert kinds == ["Q, K and V", "attention output", "gate and up", "head"]


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F16"])
def test_gguf(capsys, tmp_path, kind):
    changes = {"hidden_size": 64, "intermediate_size": 96}
    type_ = gguf.GGMLQuantizationType[kind]
    source = tiny_models.tiny_model("llama2", **changes)
    path = tiny_models.write_gguf(source, tmp_path / "m.gguf", type_)
    report = inspect(capsys, path, "--check")
    check_totals(report)
    assert (report["kind"], report["problems"]) == ("GGUF", [])
    inputs, size = gguf.GGML_QUANT_SIZES[type_]
    assert report["types"][kind.lower()]["bits_per_weight"] == 8 * size / inputs
    shapes = {tensor["name"]: tensor["shape"] for tensor in report["tensors"]}
    assert shapes["blk.0.ffn_up.weight"] == [96, 64]


@pytest.mark.native
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("kind", ["NVFP4", "Q1_0", "IQ2_XS", "TQ2_0"])
def test_types_that_only_files_have(capsys, tmp_path, kind):
    path, own = tmp_path / "m.gguf", gguf.GGMLQuantizationType[kind]
    inputs, size = gguf.GGML_QUANT_SIZES[own]
    data = np.zeros((2, 256 // inputs * size), np.uint8)
    for is_bad in (False, True):
        if is_bad:  # a scale of infinity; NVFP4 has none
            at = -2 if kind == "TQ2_0" else 0
            data[1, at % size : at % size + 2] = 0x00, 0x7C
        writer = gguf.GGUFWriter(path, "other")
        writer.add_tensor("w", data, raw_dtype=own)
        write_out(writer)
        code = cli.main(["inspect", str(path), "--json", "--check"])
        report = json.loads(capsys.readouterr().out)
        assert report["types"][kind.lower()]["bits_per_weight"] == 8 * size / inputs
        found = [problem for problem in report["problems"] if problem.startswith("w: ")]
        assert bool(found) == (is_bad and kind != "NVFP4"), (code, report["problems"])


def test_a_type_that_is_not_served_is_shown_without_its_size(capsys, tmp_path):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "other")
    data = np.zeros((2, 8 * 292), np.uint8)
    writer.add_tensor("w", data, raw_dtype=gguf.GGMLQuantizationType.Q8_K)
    write_out(writer)
    report = inspect(capsys, path, "--check")
    (tensor,) = report["tensors"]
    assert (tensor["type"], tensor["shape"]) == ("q8_k", [2, 2048])
    assert tensor["bits_per_weight"] is None
    assert cli.main(["inspect", str(path)]) == 0
    assert "?" in capsys.readouterr().out


def test_quantized(capsys, quantized):
    report = inspect(capsys, quantized, "--check")
    check_totals(report)
    assert (report["kind"], report["problems"]) == ("quantized", [])
    assert report["types"]["cb2"]["tensors"] == 21
    q = next(t for t in report["tensors"] if t["name"].endswith("0.self_attn.q_proj.weight"))
    assert (q["type"], q["shape"], q["bits_per_weight"]) == (
        "cb2",
        [64, 64],
        2.3125 + 32 / 64 + 1 / 16,
    )


def test_table_shows_the_same(capsys, quantized):
    assert cli.main(["inspect", str(quantized), "--check"]) == 0
    out = capsys.readouterr().out
    assert "model.layers.2.mlp.down_proj.weight" in out
    assert "64 x 96" in out
    assert f"{quantized} (quantized): " in out
    assert out.endswith("checked: all weights are sound\n")


def test_every_damaged_byte_is_found(capsys, quantized, tmp_path):
    folder = tmp_path / "q"
    data = (quantized / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    shutil.copytree(quantized, folder)
    for at in np.linspace(start, len(data) - 1, 12).astype(int).tolist():
        damaged = bytearray(data)
        damaged[at] ^= 16
        (folder / "model.safetensors").write_bytes(damaged)
        report = inspect(capsys, folder, "--check", status=1)
        (problem,) = report["problems"]
        assert "its note says" in problem
        assert inspect(capsys, folder)["bytes"] == report["bytes"]  # without --check nobody looks


def test_weights_that_are_not_finite_are_found(capsys, model, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(model, folder)
    tensors = {
        name: value.copy() for name, value in load_file(folder / "model.safetensors").items()
    }
    tensors["model.layers.1.mlp.up_proj.weight"][7, 3] = np.nan
    save_file(tensors, folder / "model.safetensors")
    report = inspect(capsys, folder, "--check", status=1)
    assert report["problems"] == [
        "model.layers.1.mlp.up_proj.weight: row 7, column 3 is nan; accepted: finite numbers"
    ]


def test_what_is_no_model_is_refused(capsys, tmp_path):
    assert cli.main(["inspect", str(tmp_path / "none.gguf")]) == 1
    assert "none.gguf" in capsys.readouterr().err
    assert cli.main(["inspect", str(tmp_path)]) == 1
    assert "model.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda note: note.rsplit(" ", 1)[0], "'type rows columns checksum'"),
        (lambda note: note.replace("cb2", "cb9"), "'type rows columns checksum'"),
        (lambda note: note[:-2] + "80", "'type rows columns checksum'"),
        (lambda note: note + " 00", "'type rows columns checksum'"),
        (lambda note: note.replace("cb2", "cb3"), "rows of 64 inputs as CB3 are [64, "),
        (lambda note: note.replace("64 64", "64 40"), "rows of 40 inputs as CB2 are [64, 0]"),
    ],
)
def test_notes_that_do_not_fit_are_refused(quantized, tmp_path, capsys, change, says):
    """By whatever opens the model: the notes are read before any weight."""
    folder = tmp_path / "q"
    shutil.copytree(quantized, folder)
    data = (folder / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    name = "model.layers.0.self_attn.q_proj.weight"
    header["__metadata__"][name] = change(header["__metadata__"][name])
    text = json.dumps(header).encode()
    whole = len(text).to_bytes(8, "little") + text + data[start:]
    (folder / "model.safetensors").write_bytes(whole)
    assert cli.main(["pack", str(folder), "-o", str(tmp_path / "p")]) == 1
    error = capsys.readouterr().err
    assert name in error
    assert says in error


def test_tables_reach_the_loader(quantized):
    with open_checkpoint(quantized) as checkpoint:
        tables = {tensor.table for tensor in checkpoint.tensors}
    assert len(tables) == 2  # one of the model, and none
    assert {len(table) for table in tables if table is not None} == {16}
