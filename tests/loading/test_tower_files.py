"""Files of towers: which are found, which fit, what is refused and how."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from family_models import write_model
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint
from tiny_models import tiny_model, write_gguf
from tower_gguf import write_mmproj
from tower_models import tower_model

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A language model that reads rows of 64 values, as the towers make them."""
    return write_gguf(tiny_model("llama3"), tmp_path / "text.gguf", more_tokens=["<image>"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tower_model("idefics3"), tmp_path / "model")


def mmproj(folder: Path, name: str = "mmproj-F32.gguf", **changes: object) -> Path:
    return write_mmproj(tower_model("idefics3"), folder / name, **changes)


def test_a_directory_says_what_is_known_of_pictures(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text('{"size": {"longest_edge": 128}}')
    with open_checkpoint(folder) as checkpoint:
        vision = checkpoint.vision
        assert vision is not None
        assert (vision.family, vision.image_token_id, vision.n_axes) == ("idefics3", 250, 1)
        assert (vision.patch_size, vision.merge, vision.image_size) == (4, 4, 32)
        assert vision.preprocessor["size"] == {"longest_edge": 128}
        assert vision.preprocessor["image_mean"] == [0.5, 0.5, 0.5]
    with open_checkpoint(folder, tower=False) as checkpoint:
        assert (checkpoint.tower, checkpoint.vision) == (None, None)


def test_a_file_beside_the_model_is_its_tower_if_it_fits(text: Path, tmp_path: Path) -> None:
    with open_checkpoint(text) as checkpoint:
        assert checkpoint.tower is None
    other = {"clip.vision.projection_dim": 96}
    mmproj(tmp_path, "mmproj-other.gguf", **other)
    mmproj(tmp_path, "mmproj-unknown.gguf", **{"clip.projector_type": "resampler"})
    (tmp_path / "mmproj-broken.gguf").write_bytes(b"GGUF")
    with open_checkpoint(text) as checkpoint:
        assert checkpoint.tower is None
    fits = mmproj(tmp_path)
    with open_checkpoint(text) as checkpoint:
        assert checkpoint.tower is not None
        assert checkpoint.tower.path == fits


def test_a_file_for_another_language_model_is_told_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It makes rows of the right length, but this vocabulary has no token for pictures."""
    text = write_gguf(tiny_model("llama3"), tmp_path / "text.gguf")
    found = mmproj(tmp_path)
    with caplog.at_level("WARNING"), open_checkpoint(text) as checkpoint:
        assert checkpoint.tower is None
        assert "pictures are refused" in caplog.text
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.tokens has no '<image>'"):
        open_checkpoint(text, mmproj=found)


def test_a_file_that_is_given_must_fit(text: Path, tmp_path: Path) -> None:
    given = mmproj(tmp_path, "other.gguf", **{"clip.vision.projection_dim": 96})
    with pytest.raises(ModelFileError, match=r"mm\.model\.fc|rows have 96 values.* rows of 64"):
        open_checkpoint(text, mmproj=given)
    with pytest.raises(ModelFileError, match="mmproj gives a GGUF file its tower"):
        open_checkpoint(write_model(tower_model("idefics3"), tmp_path / "hf"), mmproj=given)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"clip.projector_type": "resampler"},
            r"clip\.projector_type is 'resampler'; one of idefi",
        ),
        ({"clip.use_gelu": False}, "hidden_act is 'quick_gelu'"),
        ({"clip.vision.image_size": 30}, r"clip\.vision\.image_size is 30, clip\.vision\.patch"),
        ({"clip.vision.image_mean": [0.5]}, r"image_mean is \[0\.5\]; a list of three numbers"),
        ({"clip.vision.block_count": 3}, r"missing tensors 'blk\.2\.attn_norm\.weight'"),
        ({"clip.vision.attention.head_count": 7}, "head_count is 7; a divisor of the hidden size"),
    ],
)
def test_what_is_refused_names_file_key_and_value(
    text: Path, tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    given = mmproj(tmp_path, "given.gguf", **changes)
    with pytest.raises(ModelFileError, match=says) as refused:
        open_checkpoint(text, mmproj=given)
    assert str(given) in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("do_normalize", False, "do_normalize is False; true is needed"),
        ("rescale_factor", 0.5, r"rescale_factor is 0\.5; 1/255 is needed"),
        ("image_std", [0.5, "x", 0.5], "image_std is .* a list of three numbers"),
    ],
)
def test_a_preprocessor_that_makes_other_floats_leaves_the_texts(
    folder: Path, name: str, value: object, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps({name: value}))
    reads_texts_alone(folder, says, caplog)


def reads_texts_alone(folder: Path, says: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever asks such a model about texts need not care; that pictures are refused is told."""
    with open_checkpoint(folder, tower=False) as plain:
        expected = plain.config
    with caplog.at_level("WARNING"), open_checkpoint(folder) as checkpoint:
        assert checkpoint.tower is checkpoint.vision is None
        assert checkpoint.config == expected
    assert re.search(says, caplog.text)
    assert "pictures are refused" in caplog.text


def test_a_field_that_would_change_rows_leaves_the_texts(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["num_channels"] = 4
    (folder / "config.json").write_text(json.dumps(config))
    reads_texts_alone(folder, "num_channels is 4; 3 is needed", caplog)


def test_the_language_model_of_qwen3_vl_is_qwen3(tmp_path: Path) -> None:
    """Its files have keys of their own for what only pictures need."""
    model = tiny_model("qwen3")
    of_vision = replace(model, config=model.config | {"model_type": "qwen3vl"})
    keys = {"qwen3vl.rope.dimension_sections": [4, 4, 4, 0], "qwen3vl.n_deepstack_layers": 3}
    path = write_gguf(of_vision, tmp_path / "vl.gguf", metadata=keys)
    plain = write_gguf(model, tmp_path / "plain.gguf")
    with open_checkpoint(path) as one, open_checkpoint(plain) as other:
        assert one.config == other.config
