"""Heads that predict further tokens: read where they are asked for, left out elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from family_gguf import n_layers_of
from family_models import family_model, write_case, write_model
from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Role
from lanewise.loading.base.json_files import Fields
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.files.rearranging import to_f32
from lanewise.loading.programs.stored_program import program_as_json, read_program
from mtp_models import CASE_NAMES, as_published, head_tensors, write_directory, write_file


def values_of(checkpoint: Checkpoint) -> dict[tuple[Role, int], bytes]:
    return {(t.role, t.layer): bytes(t.data) for t in checkpoint.tensors}


@pytest.mark.parametrize("name", CASE_NAMES)
def test_a_head_is_left_out_unless_it_is_asked_for(name: str, tmp_path: Path) -> None:
    with (
        open_checkpoint(write_case(name, tmp_path / "plain")) as plain,
        open_checkpoint(write_directory(name, tmp_path / "hf")) as directory,
        open_checkpoint(write_file(name, tmp_path / "m.gguf")) as file,
    ):
        assert directory.config == plain.config
        assert not plain.config.has_mtp
        assert values_of(directory) == values_of(plain)
        assert (file.config.n_layers, file.config.has_mtp) == (plain.config.n_layers, False)


def test_a_head_is_read_if_there_is_one(tmp_path: Path) -> None:
    """And one that is not read is no error."""
    with open_checkpoint(write_directory("qwen3_next", tmp_path / "hf"), mtp=None) as opened:
        assert opened.config.has_mtp
    with open_checkpoint(write_file("glm4_moe", tmp_path / "m.gguf"), mtp=None) as opened:
        assert opened.config.has_mtp
    for name in ("qwen3_5", "llama"):
        with open_checkpoint(write_case(name, tmp_path / name), mtp=None) as opened:
            assert not opened.config.has_mtp


@pytest.mark.parametrize("name", CASE_NAMES)
def test_a_stored_program_has_its_head(name: str, tmp_path: Path) -> None:
    with open_checkpoint(write_directory(name, tmp_path / "hf"), mtp=True) as opened:
        stored = program_as_json(opened.config)
        assert read_program(Fields(stored, "m")) == opened.config
    *layers, head = stored["layers"]
    attentive = {"attention": head["attention"], "mtp": True}
    feeding = {key: value for key, value in head.items() if key != "attention"}
    for program, says in (
        ([head], "must be 0"),
        ([head, *layers], "must be 0"),
        ([*layers, feeding], "must be 0 but with attention to all tokens"),
        ([*layers, attentive], "must be 0 but with an FFN"),
    ):
        with pytest.raises(ModelFileError, match=f"layer .: mtp is 1, {says}"):
            read_program(Fields({**stored, "layers": program}, "m"))


@pytest.mark.parametrize("name", CASE_NAMES)
def test_a_head_is_one_more_layer_with_the_same_weights_in_both_kinds_of_file(
    name: str, tmp_path: Path
) -> None:
    with (
        open_checkpoint(write_case(name, tmp_path / "plain")) as plain,
        open_checkpoint(write_directory(name, tmp_path / "hf"), mtp=True) as directory,
        open_checkpoint(write_file(name, tmp_path / "m.gguf"), mtp=True) as file,
    ):
        n_layers = plain.config.n_layers
        assert directory.config.layers[:-1] == plain.config.layers
        head = directory.config.layers[-1]
        assert head.mtp
        assert head.state is None
        assert head == file.config.layers[-1]
        values = values_of(directory)
        assert {key: values.pop(key) for key in values_of(plain)} == values_of(plain)
        # What remains is the head's; in GGUF it has the same bits.
        assert {layer for _, layer in values} == {n_layers}
        assert {role for role, _ in values} > {Role.MTP_PROJECTION, Role.MTP_NORM, Role.ATTN_Q}
        others = values_of(file)
        assert {key: others[key] for key in values} == values
        shapes = {t.role: (t.rows, t.cols) for t in file.tensors if t.layer == n_layers}
        hidden = file.config.hidden_size
        assert shapes[Role.MTP_PROJECTION] == (hidden, 2 * hidden)


def test_norms_of_qwens_heads_are_stored_less_1(tmp_path: Path) -> None:
    path = write_directory("qwen3_5", tmp_path / "hf")
    stored = head_tensors(family_model("qwen3_5"))["model.layers.4.hnorm.weight"]
    with open_checkpoint(path, mtp=True) as opened:
        tensor = next(t for t in opened.tensors if t.role == Role.MTP_HIDDEN_NORM)
        assert np.array_equal(to_f32(tensor.data, tensor.type), stored + np.float32(1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("qwen3_5", "does not have; accepted: a file with mtp.fc.weight"),
        ("llama", "not supported for llama models; accepted: qwen3_5, "),
    ],
)
def test_a_head_that_is_missing_is_an_error(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=message):
        open_checkpoint(write_case(name, tmp_path / "hf"), mtp=True)


def test_a_second_head_and_missing_parts_are_errors(tmp_path: Path) -> None:
    model = family_model("qwen3_5")
    head = as_published(model, head_tensors(model))
    second = head | {"mtp.layers.1.input_layernorm.weight": np.zeros(64, np.float32)}
    more = write_model(replace(model, tensors=model.tensors | second), tmp_path / "second")
    with pytest.raises(ModelFileError, match="belongs to a second multi-token"):
        open_checkpoint(more, mtp=True)
    del head["mtp.norm.weight"]
    less = write_model(replace(model, tensors=model.tensors | head), tmp_path / "less")
    with pytest.raises(ModelFileError, match=r"missing tensor 'model.layers.4.shared_head.norm"):
        open_checkpoint(less, mtp=True)
    own = head | {"mtp.embed_tokens.weight": np.zeros((256, 64), np.float32)}
    other = write_model(replace(model, tensors=model.tensors | own), tmp_path / "own")
    with pytest.raises(ModelFileError, match=r"'mtp.embed_tokens.weight' .* its own embedding"):
        open_checkpoint(other, mtp=True)


def test_copies_of_the_models_ends_in_glms_head_are_left_out(tmp_path: Path) -> None:
    model = family_model("glm4_moe")
    prefix = f"model.layers.{n_layers_of(model.config)}."
    copies = {
        prefix + "embed_tokens.weight": model.tensors["model.embed_tokens.weight"],
        prefix + "shared_head.head.weight": model.tensors["lm_head.weight"],
    }
    path = write_directory("glm4_moe", tmp_path / "hf", head=head_tensors(model) | copies)
    with open_checkpoint(path, mtp=True) as opened:
        assert opened.config.has_mtp
