"""Commands and the part of a model that reads pictures: packed, quantized, inspected, planned."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from family_models import write_model
from lanewise import cli
from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Model
from lanewise.runtime.tower import Tower
from opened_models import ISA
from seeing_models import write_seeing_model
from tiny_models import tiny_model, write_gguf
from tower_gguf import write_mmproj
from tower_models import CASES, pictures, tower_model

pytestmark = [pytest.mark.native, pytest.mark.slow, pytest.mark.usefixtures("library")]

ALL = 1 << 60  # nanoseconds


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose tower's matrices are of whole groups, which may be codes."""
    return write_seeing_model(tmp_path_factory.mktemp("models") / "seeing", "idefics3")


@pytest.fixture(scope="module")
def packed(seeing: Path) -> Path:
    return pack(seeing, seeing.with_name("packed"))


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file with its tower beside it."""
    folder = tmp_path_factory.mktemp("gguf")
    path = write_gguf(tiny_model("llama3"), folder / "text.gguf", more_tokens=["<image>"])
    write_mmproj(tower_model("idefics3"), folder / "mmproj-text.gguf")
    return path


def pack(source: Path, folder: Path, *options: str) -> Path:
    level = () if ISA is None else ("--isa", ISA)
    assert cli.main(["pack", str(source), "-o", str(folder), *level, *options]) == 0
    return folder


def rows_of(path: Path, name: str = "idefics3", weights: str | None = None) -> np.ndarray:
    """Rows of the first picture of a case."""
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tower is not None
        with (
            Model.load(checkpoint.tower, weights=weights, isa=ISA, threads=1) as model,
            Tower(model, threads=1) as tower,
        ):
            job = tower.begin([pictures(name)[0]])
            while not job.advance(ALL):
                pass
            return job.rows


def said_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    cli.main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert cli.main(list(arguments)) in (1, 2)
    return capsys.readouterr().err


def facts_of(checkpoint: Checkpoint) -> tuple[object, ...]:
    assert checkpoint.tower is not None
    return checkpoint.vision, checkpoint.config, checkpoint.tower.config


@pytest.mark.parametrize("name", CASES)
def test_a_packed_model_sees_the_same(name: str, tmp_path: Path) -> None:
    source = write_seeing_model(tmp_path / "model", "idefics3" if name == "smolvlm" else name)
    if name == "smolvlm":
        write_model(tower_model(name), source)
    folder = pack(source, tmp_path / "packed")
    with open_checkpoint(source) as one, open_checkpoint(folder) as other:
        assert facts_of(one) == facts_of(other)
    assert np.array_equal(rows_of(source, name), rows_of(folder, name))
    with open_checkpoint(folder, tower=False) as checkpoint:
        assert (checkpoint.tower, checkpoint.vision) == (None, None)


def test_a_packed_gguf_model_sees_the_same(gguf: Path, tmp_path: Path) -> None:
    beside = pack(gguf, tmp_path / "beside")
    alone = shutil.copy(gguf, tmp_path / "alone.gguf")
    given = pack(alone, tmp_path / "given", "--mmproj", str(gguf.with_name("mmproj-text.gguf")))
    with open_checkpoint(gguf) as one, open_checkpoint(beside) as other:
        assert facts_of(one) == facts_of(other)
    for folder in (beside, given):
        assert np.array_equal(rows_of(gguf), rows_of(folder))


def test_codes_are_those_that_loading_makes(seeing: Path, packed: Path, tmp_path: Path) -> None:
    coded = rows_of(seeing, weights="q8_0")
    assert not np.array_equal(coded, rows_of(seeing))
    folder = pack(seeing, tmp_path / "codes", "--tower-weights", "q8_0")
    assert np.array_equal(rows_of(folder), coded)
    again = pack(folder, tmp_path / "again")
    assert (again / "tower.safetensors").read_bytes() == (folder / "tower.safetensors").read_bytes()
    options = "--format", "q8_0", "--calibrate", "none", "--check-tokens", "0"
    for source, more, wanted in (
        (seeing, ("--tower-weights", "q8_0"), coded),
        (packed, (), rows_of(seeing)),
    ):
        out = tmp_path / f"quantized-{source.name}"
        assert cli.main(["quantize", str(source), "-o", str(out), *options, *more]) == 0
        assert np.array_equal(rows_of(out), wanted)
        with open_checkpoint(seeing) as one, open_checkpoint(out) as other:
            assert facts_of(one) == facts_of(other)
            assert other.weights_name == "q8_0"


def test_a_model_may_be_packed_without(
    capsys: pytest.CaptureFixture[str], seeing: Path, packed: Path, gguf: Path, tmp_path: Path
) -> None:
    folder = pack(seeing, tmp_path / "text", "--text-only")
    assert not (folder / "tower.safetensors").exists()
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.tower is None
    to = "-o", str(tmp_path / "new")
    told = error_of(capsys, "pack", str(folder), *to, "--tower-weights", "q8_0")
    assert "--tower-weights: this model reads text only" in told
    told = error_of(capsys, "quantize", str(folder), *to, "--tower-weights", "q8_0")
    assert "--tower-weights: this model reads text only" in told
    mmproj = "--mmproj", str(gguf.with_name("mmproj-text.gguf"))
    told = error_of(capsys, "pack", str(gguf), *to, *mmproj, "--text-only")
    assert "--mmproj: given beside --text-only" in told
    assert "mmproj gives a GGUF file its tower" in error_of(
        capsys, "pack", str(packed), *to, *mmproj
    )
    assert not (tmp_path / "new").exists()


def test_a_gguf_result_has_its_tower_elsewhere(
    capsys: pytest.CaptureFixture[str], gguf: Path, tmp_path: Path
) -> None:
    options = "--format", "q8_0", "--calibrate", "none", "--check-tokens", "0", "--gguf"
    capsys.readouterr()
    assert cli.main(["quantize", str(gguf), "-o", str(tmp_path / "q.gguf"), *options]) == 0
    beside = gguf.with_name("mmproj-text.gguf")
    assert f"what reads pictures is left out: GGUF has it in an mmproj file; give {beside}" in (
        capsys.readouterr().err
    )


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tower: tower.update(family="llava"), "family is 'llava'; one of gemma3"),
        (lambda tower: tower.pop("model"), "model is missing; an object"),
        (lambda tower: tower["model"].pop("patches"), "vocab_size is 0, must be 1"),
        (lambda tower: tower["model"]["patches"].update(side=0), "side is 0"),
        (lambda tower: tower["model"]["patches"].update(side=6), "model.patches.weight"),
        (
            lambda tower: tower["model"]["patches"].update(taps=[0.5]),
            "taps is [0.5]; a list of whole",
        ),
        (
            lambda tower: tower["model"]["patches"].update(mean=[0, 0]),
            "mean is [0, 0]; a list of three",
        ),
        (lambda tower: tower["model"]["patches"].update(taps=[0]), "taps"),
        (lambda tower: tower["model"]["patches"].update(colour=1), "colour: missing or unknown"),
        (lambda tower: tower.update(image_token_id=-1), "image_token_id is -1"),
        (lambda tower: tower.update(preprocessor=[]), "preprocessor is []; an object"),
    ],
)
def test_a_tower_that_does_not_fit_is_refused(
    packed: Path, tmp_path: Path, change: Change, says: str
) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(packed, folder)
    config = json.loads((folder / "config.json").read_text())
    change(config["quantization_config"]["tower"])
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(folder)
    assert says in str(caught.value)
    open_checkpoint(folder, tower=False).close()


def test_a_tower_that_is_lost_is_named(packed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lost"
    shutil.copytree(packed, folder)
    (folder / "tower.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"tower\.safetensors"):
        open_checkpoint(folder)


def test_inspect_tells_of_it(
    capsys: pytest.CaptureFixture[str], seeing: Path, packed: Path, gguf: Path, tmp_path: Path
) -> None:
    for path, file, kind in ((seeing, seeing, "f32"), (packed, packed, "f32")):
        report = said_of(capsys, "inspect", str(path), "--check")
        assert report["problems"] == []
        assert report["not_run"] is None
        tower = report["tower"]
        assert (tower["family"], tower["type"], tower["path"]) == ("idefics3", kind, str(file))
        assert (tower["patch"], tower["tokens_of_pixels"]) == (4, 16)
    names = {tensor["name"] for tensor in report["tensors"]}
    assert {"model.layers.0.mlp.up_proj.weight", "tower.model.patches.weight"} <= names
    report = said_of(capsys, "inspect", str(gguf))
    assert report["tower"]["path"] == str(gguf.with_name("mmproj-text.gguf"))
    capsys.readouterr()
    assert cli.main(["inspect", str(gguf)]) == 0
    assert "reads pictures with" in capsys.readouterr().out
    text = pack(seeing, tmp_path / "text", "--text-only")
    assert said_of(capsys, "inspect", str(text))["tower"] is None


def test_inspect_finds_what_is_wrong_with_it(
    capsys: pytest.CaptureFixture[str], packed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(packed, folder)
    weights = bytearray((folder / "tower.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "tower.safetensors").write_bytes(weights)
    [problem] = said_of(capsys, "inspect", str(folder), "--check")["problems"]
    assert problem.startswith("tower.model.")
    assert "the file is damaged" in problem
    # Each weight is finite, their products are not.
    model = tower_model("idefics3")
    for name, tensor in model.tensors.items():
        if name.startswith("model.vision_model.") and ".mlp." in name:
            model.tensors[name] = tensor * np.float32(1e20)
    large = write_seeing_model(tmp_path / "large", "idefics3")
    write_model(model, large)
    [problem] = said_of(capsys, "inspect", str(large), "--check")["problems"]
    assert "a picture of 32 x 32 pixels" in problem
    assert "too large" in problem


def test_plan_counts_it(capsys: pytest.CaptureFixture[str], seeing: Path, tmp_path: Path) -> None:
    asked = "--users", "2", "--prompt-tokens", "32", "--answer-tokens", "16"
    on = *asked, "--instance", "c7i.xlarge"
    text = pack(seeing, tmp_path / "text", "--text-only")
    both, alone = (said_of(capsys, "plan", str(path), *on)["memory"] for path in (seeing, text))
    with open_checkpoint(seeing) as checkpoint:
        assert checkpoint.tower is not None
        held = sum(tensor.n_bytes for tensor in checkpoint.tower.tensors)
    assert (both["tower_bytes"], alone["tower_bytes"]) == (held, 0)
    assert both["weight_bytes"] - alone["weight_bytes"] == held
    capsys.readouterr()
    assert cli.main(["plan", str(seeing), *on]) == 0
    assert "read pictures" in capsys.readouterr().out


def test_compare_weighs_the_language_model(
    capsys: pytest.CaptureFixture[str], seeing: Path, tmp_path: Path
) -> None:
    codes = pack(seeing, tmp_path / "codes", "--tower-weights", "q8_0")
    few = "--tokens", "64", "--prefill", "8", "--decode", "8", "--repeat", "1"
    rows = said_of(capsys, "compare", str(seeing), str(codes), *few)["models"]
    assert [row["bits_per_weight"] for row in rows] == [32.0, 32.0]
    assert rows[1]["kl"] == 0
