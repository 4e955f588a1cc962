"""Weights that are all finite and so large that their products are not: who says so, and how."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tiny_models
from lanewise import cli

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

WEIGHTS = "model.safetensors"
TEXT = "It was a dark night, and the sea was loud. " * 4


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    changes = {"hidden_size": 64, "intermediate_size": 96}
    made = tiny_models.tiny_model("llama2", **changes)
    return tiny_models.write_hf(made, tmp_path_factory.mktemp("sound") / "m")


@pytest.fixture(scope="module", params=["model.norm.weight", "lm_head.weight"])
def overflowing(request, sound, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("overflowing") / "big"
    shutil.copytree(sound, folder)
    tensors = {name: value.copy() for name, value in load_file(folder / WEIGHTS).items()}
    tensors[request.param] = np.copysign(np.float32(3e38), tensors[request.param])
    save_file(tensors, folder / WEIGHTS)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(TEXT)
    return str(path)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_perplexity_ends_with_an_error(capsys, overflowing, text, options):
    assert cli.main(["perplexity", str(overflowing), "--file", text, *options]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"lanewise: {overflowing}: ")
    assert "NaN or infinity" in output.err


def test_compare_ends_with_an_error_that_names_the_model(capsys, sound, overflowing, text):
    bench = ["--prefill", "8", "--decode", "2", "--repeat", "1"]
    assert cli.main(["compare", str(sound), str(overflowing), "--file", text, *bench]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert f"lanewise: {overflowing}: " in output.err
    assert "NaN or infinity" in output.err


@pytest.mark.parametrize("packed", [False, True])
def test_inspect_finds_it_by_running_a_step(capsys, overflowing, tmp_path, packed):
    path = overflowing
    if packed:
        path = tmp_path / "packed"
        assert cli.main(["pack", str(overflowing), "-o", str(path)]) == 0
    assert cli.main(["inspect", str(path), "--json"]) == 0
    capsys.readouterr()
    assert cli.main(["inspect", str(path), "--check", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    (problem,) = report["problems"]
    assert problem.startswith("a step over 16 tokens ")
    assert "products of the weights are too large" in problem
    assert report["not_run"] is None


def test_inspect_says_why_no_step_was_run(capsys, sound, tmp_path):
    folder = tmp_path / "unknown"
    shutil.copytree(sound, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    assert cli.main(["inspect", str(folder), "--check"]) == 0
    *_, sound_line, why = capsys.readouterr().out.splitlines()
    assert sound_line == "checked: all weights are sound"
    assert why.startswith("a step was not tried: ")
    assert "hidden_act" in why


def test_inspect_runs_a_step_of_a_sound_model(capsys, sound):
    assert cli.main(["inspect", str(sound), "--check"]) == 0
    assert capsys.readouterr().out.endswith("checked: all weights are sound\n")
