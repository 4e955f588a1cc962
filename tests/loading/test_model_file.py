"""A model's file as families read it: a field has one name in both kinds, errors the file's key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from family_gguf import write_gguf
from family_models import family_model, write_case
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.names import FIELD_NAMES, GGUF, HF, PER_LAYER, ZERO_SAYS_NOTHING
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.families.table import FAMILIES
from lanewise.loading.programs import reference
from lanewise.loading.programs.model_file import ModelFile


def directory(**values: Any) -> ModelFile:
    return ModelFile(Fields(values, "config.json"), {}, HF)


def gguf(**values: Any) -> ModelFile:
    metadata = {"general.architecture": "granite"}
    metadata |= {f"granite.{key.replace('__', '.')}": value for key, value in values.items()}
    return ModelFile(Fields(metadata, "m.gguf"), {}, GGUF)


def error_of(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(path)
    return str(caught.value)


def test_one_name_reads_both_kinds() -> None:
    for file in (directory(num_hidden_layers=2), gguf(block_count=2)):
        assert file.integer("num_hidden_layers") == 2
        assert not file.unread()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (directory(num_hidden_layers=0), "config.json: num_hidden_layers is 0; a whole number"),
        (gguf(block_count=0), "m.gguf: granite.block_count is 0; a whole number"),
        (directory(), "config.json: num_hidden_layers is missing; a whole number"),
        (gguf(), "m.gguf: granite.block_count is missing; a whole number"),
    ],
)
def test_an_error_has_the_key_of_the_file(file: ModelFile, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        file.integer("num_hidden_layers")


def test_a_key_of_gguf_files_alone_is_not_in_a_directory() -> None:
    assert gguf(rope__scaling__type="yarn").text("{arch}.rope.scaling.type") == "yarn"
    assert directory().text("{arch}.rope.scaling.type", default="none") == "none"


def test_a_name_that_gguf_files_do_not_have_is_not_read_from_them() -> None:
    assert gguf(use_bias=True).flag("use_bias", default=False) is False


def test_zero_says_nothing_in_a_gguf_file_and_is_refused_in_a_directory() -> None:
    name = "residual_multiplier"
    assert gguf(residual_scale=0.0).number(name, default=1.0) == 1.0
    with pytest.raises(ModelFileError, match="residual_multiplier is 0"):
        directory(residual_multiplier=0.0).number(name, default=1.0)
    with pytest.raises(ModelFileError, match=r"granite\.residual_scale is False"):
        gguf(residual_scale=False).number(name, default=1.0)


def test_a_number_for_each_layer_is_one_where_all_are_the_same() -> None:
    name = "num_key_value_heads"
    assert gguf(attention__head_count_kv=[4, 4]).integer(name) == 4
    with pytest.raises(ModelFileError, match=r"head_count_kv is \[4, 2\]; the same number for"):
        gguf(attention__head_count_kv=[4, 2]).integer(name)
    with pytest.raises(ModelFileError, match=r"num_key_value_heads is \[4, 4\]; a whole number"):
        directory(num_key_value_heads=[4, 4]).integer(name)


def test_other_values_and_tensors_leave_what_was_read() -> None:
    file = gguf(block_count=2, context_length=64)
    other = file.replacing({"num_hidden_layers": 3}).with_tensors({})
    assert other.integer("num_hidden_layers") == 3
    assert file.integer("num_hidden_layers") == 2
    assert file.unread() == other.unread() == ["granite.context_length"]


def test_a_directory_with_keys_of_its_own_is_read_and_blamed_by_them() -> None:
    keys = {"hidden_size": "n_embd"}
    both = directory(n_embd=4, hidden_size=8).called(keys)
    assert both.integer("hidden_size") == 4
    assert not both.unread()
    assert directory(hidden_size=8).called_if_set(keys).integer("hidden_size") == 8
    with pytest.raises(ModelFileError, match=r"config\.json: n_embd is 0; a whole number"):
        directory(n_embd=0).called_if_set(keys).integer("hidden_size")


@pytest.mark.parametrize(("name", "key"), [("gpt2", "n_head"), ("falcon", "n_layer")])
def test_an_error_has_the_key_that_only_some_families_have(
    name: str, key: str, tmp_path: Path
) -> None:
    assert f"{key} is 0; a whole number" in error_of(write_case(name, tmp_path / "hf", **{key: 0}))


def test_each_row_of_the_table_is_read_by_both_references() -> None:
    """A row that neither reads is dead, or a key has been written wrongly."""
    names = {name for family in FAMILIES for name in reference.config_fields(family.name)}
    archs = {family.gguf for family in FAMILIES if family.gguf} | {"nomic-bert-moe"}
    keys = {f"{{arch}}.{key}" for arch in archs for key in reference.gguf_keys(arch)}
    # The first is of its makers' own config.json; the wrapper of a text model reads the second.
    assert FIELD_NAMES.keys() - names == {"moe_every_n_layers", "output_multiplier"}
    assert not set(FIELD_NAMES.values()) - keys
    assert FIELD_NAMES.keys() >= ZERO_SAYS_NOTHING | PER_LAYER


@pytest.mark.parametrize("name", ["arcee", "gpt2", "gemma", "qwen3"])
def test_a_gguf_file_may_say_the_size_of_the_ffn_for_each_layer(name: str, tmp_path: Path) -> None:
    model = family_model(name)
    with open_checkpoint(write_gguf(model, tmp_path / "plain.gguf")) as plain:
        expected = plain.config
    keys = {"feed_forward_length": [expected.ffn_size(0)] * expected.n_layers}
    with open_checkpoint(write_gguf(model, tmp_path / "keys.gguf", keys)) as checkpoint:
        assert checkpoint.config == expected


def test_turned_dimensions_of_windows_are_refused_by_their_own_key(tmp_path: Path) -> None:
    model, keys = family_model("gemma4"), {"rope.dimension_count_swa": 17}
    error = error_of(write_gguf(model, tmp_path / "m.gguf", keys))
    assert "gemma4.rope.dimension_count_swa is 17; an even number up to the head dimension" in error


def test_a_share_of_heads_that_olmo3_does_not_turn_is_refused(tmp_path: Path) -> None:
    error = error_of(write_case("olmo3", tmp_path / "hf", partial_rotary_factor=0.5))
    assert "partial_rotary_factor is 0.5; unknown field that may change" in error
