"""What the references read decides: other fields of a file change nothing and refuse nothing."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from data_files import data
from encoder_models import encoder_model
from family_gguf import write_gguf
from family_models import family_model, write_case, write_model
from goldens import check_goldens
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.sources import SourceTensor
from lanewise.loading.checkpoints import hf_checkpoint
from lanewise.loading.checkpoints.hf_checkpoint import family_of, read_program
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.families.table import FAMILIES, OTHER_NAMES
from lanewise.loading.files.safetensors import SafetensorsFile
from lanewise.loading.files.weights_files import read_sources
from lanewise.loading.programs import harmless, reference
from lanewise.loading.programs.text_part import text_tensors
from published_configs import CASES, ENCODERS
from published_keys import OF_DECODERS, OF_ENCODERS, OF_TOOLS

FIELDS = Path(__file__).parents[1] / "golden" / "fields" / "make_fields.py"
KNOWN = {family.name for family in FAMILIES} | OTHER_NAMES.keys()


def error_of(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(path)
    return str(caught.value)


@pytest.mark.parametrize("name", OF_DECODERS)
def test_what_the_reference_does_not_read_changes_nothing(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = OF_DECODERS[name] | OF_TOOLS
    with open_checkpoint(write_case(name, tmp_path / "plain")) as plain:
        expected = plain.config
    caplog.set_level(logging.DEBUG, "lanewise.loading.programs.harmless")
    with open_checkpoint(write_case(name, tmp_path / "keys", **keys)) as checkpoint:
        assert checkpoint.config == expected
    assert "a_field_of_tomorrow" in caplog.text


@pytest.mark.parametrize("name", OF_ENCODERS)
def test_nor_does_it_in_an_encoder(name: str, tmp_path: Path) -> None:
    model, config = encoder_model(name), ENCODERS[name]
    with open_checkpoint(write_model(model, tmp_path / "plain", config)) as plain:
        expected = plain.config
    keys = OF_ENCODERS[name] | OF_TOOLS
    with open_checkpoint(write_model(model, tmp_path / "keys", config | keys)) as checkpoint:
        assert checkpoint.config == expected


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama", "rope_scaling", {"rope_type": "yarn", "factor": 2.0, "mrope_section": [2, 3, 3]}),
        ("minicpm", "sparse_config", {"block_size": 64}),
        ("phi", "qk_layernorm", True),
        ("gemma2", "use_bidirectional_attention", True),
    ],
)
def test_what_the_reference_reads_and_we_do_not_is_refused_by_name(
    name: str, key: str, value: Any, tmp_path: Path
) -> None:
    inner = "mrope_section" if isinstance(value, dict) and "mrope_section" in value else key
    assert f"{inner} is " in error_of(write_case(name, tmp_path / "hf", **{key: value}))


@pytest.mark.parametrize("value", [None, 0, [], {}])
def test_neutral_values_of_what_the_reference_reads_pass(value: Any, tmp_path: Path) -> None:
    keys = {"sparse_config": value, "is_causal": True}
    with (
        open_checkpoint(write_case("minicpm", tmp_path / "hf", **keys)) as checkpoint,
        open_checkpoint(write_case("minicpm", tmp_path / "plain")) as plain,
    ):
        assert checkpoint.config == plain.config


def test_what_is_taken_out_of_the_table_is_refused_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the table is what decides, and its own test must hold it whole."""
    folder = write_case("minicpm", tmp_path / "hf", sparse_config={"block_size": 64})
    assert "sparse_config is " in error_of(folder)
    short = dict(reference.config_fields("minicpm"))
    del short["sparse_config"]
    monkeypatch.setattr(hf_checkpoint, "config_fields", lambda *_: short)
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.config.n_layers == 2


@pytest.mark.parametrize("name", [family.name for family in FAMILIES])
def test_what_is_known_as_harmless_is_read_by_the_reference(name: str) -> None:
    """Else the entry is dead: what is not read refuses nothing."""
    (family,) = [one for one in FAMILIES if one.name == name]
    read = reference.config_fields(name)
    assert {*family.harmless} <= read.keys()
    assert not {key for key in family.harmless if key in harmless.HF_HARMLESS}


def test_generally_harmless_fields_are_read_by_some_reference() -> None:
    read = {key for family in FAMILIES for key in reference.config_fields(family.name)}
    assert read >= harmless.HF_HARMLESS


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama", "attention.key_length_swa", 8),
        ("llama", "rope.scaling.alpha", 1000.0),
        ("granite", "deepstack_mapping", [0, 1]),
        ("glm4_moe", "rope.dimension_sections", [1, 2, 3, 2]),
        ("gemma2", "rope.freq_base_swa", 5e5),
    ],
)
def test_a_key_that_llama_cpp_reads_and_we_do_not_refuses_a_gguf(
    name: str, key: str, value: Any, tmp_path: Path
) -> None:
    error = error_of(write_gguf(family_model(name), tmp_path / "m.gguf", {key: value}))
    assert f".{key} is " in error
    assert "unknown field that may change the answers" in error


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama", {"attn_logit_softcapping": 50.0, "attention.scale": 0.5, "logit_scale": 3.0}),
        ("llama", {"attention.clamp_kqv": 8.0, "something.new": "x"}),
        ("granite", {"ssm.conv_kernel": 4, "ssm.inner_size": 2048, "ssm.state_size": 128}),
        ("granitemoe", {"ssm.group_count": 1, "ssm.time_step_rank": 48}),
        ("qwen2", {"final_logit_softcapping": 30.0, "use_parallel_residual": True}),
        ("llama", {"attention.key_length": 16, "attention.key_length_swa": 16}),
        ("olmo2", {"rope.freq_base_swa": 500000.0}),
    ],
)
def test_a_key_that_llama_cpp_does_not_read_changes_nothing(
    name: str, keys: Mapping[str, Any], tmp_path: Path
) -> None:
    model = family_model(name)
    with open_checkpoint(write_gguf(model, tmp_path / "plain.gguf")) as plain:
        expected = plain.config
    with open_checkpoint(write_gguf(model, tmp_path / "keys.gguf", dict(keys))) as checkpoint:
        assert checkpoint.config == expected


def outcome(config: Mapping[str, Any], sources: dict[str, SourceTensor]) -> ModelConfig | str:
    """The program that a config describes, or what is wrong with it."""
    try:
        family, fields = family_of(Fields(config, "config.json"))
        return read_program(family, fields, dict(sources))[0]
    except ModelFileError as error:
        return str(error)


@pytest.mark.parametrize("name", CASES)
def test_a_field_that_is_left_out_means_what_it_means_to_the_reference(
    name: str, tmp_path: Path
) -> None:
    folder = write_case(name, tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    meanings = family_of(Fields(config, "config.json"))[1].meanings
    file = SafetensorsFile(folder / "model.safetensors")
    sources = text_tensors(read_sources([file]), "m")
    for key in config.keys() & meanings.keys():
        if meanings[key] is not None:
            without = {field: value for field, value in config.items() if field != key}
            found = outcome(without, sources)
            said = outcome(without | {key: meanings[key]}, sources)
            if isinstance(found, str) or isinstance(said, str):
                assert type(found) is type(said), key
            else:
                assert found == said, key
    file.close()


def tensors_for(config: Mapping[str, Any]) -> dict[str, SourceTensor]:
    """As many as layers can need, with the scalars that some families' programs are made of."""

    def tensor(shape: tuple[int, ...]) -> SourceTensor:
        data = memoryview(b"\0\0\x80\x3f")
        return SourceTensor("m", shape, TensorType.F32, data, lambda: None)

    text = config.get("text_config", config)
    found = {f"model.layers.{number}.x": tensor((1,)) for number in range(200)}
    found |= {f"model.layers.{number}.layer_scalar": tensor((1,)) for number in range(200)}
    hidden = text.get("hidden_size") or text.get("n_embd") or 4096
    found["model.embed_tokens.weight"] = tensor((text.get("vocab_size", 32000), hidden))
    return found


def published() -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from json.loads(data("configs.json").read_text()).items()


# Of types that are supported: what has no place in our layers, which the error says.
PARTS_NOT_SUPPORTED = re.compile(r"(is|are) not supported\)( \(also: .+\))? is needed")


def test_every_published_config_is_read_or_its_type_is_not_supported() -> None:
    read, refused = 0, {}
    for name, config in published():
        found = outcome(config, tensors_for(config))
        if isinstance(found, str):
            refused[name] = found
        else:
            read += 1
    print(read, "are read; the others:", *refused.values(), sep="\n")
    for error in refused.values():
        is_of_others = re.search("model_type '(.*)' is not supported", error)
        of_a_part = PARTS_NOT_SUPPORTED.search(error)
        assert (is_of_others and is_of_others[1] not in KNOWN) or of_a_part, error
    assert read >= 80


def test_a_wrapper_leaves_out_what_its_text_models_class_says() -> None:
    """LLaVA 1.5, whose text_config has the four fields that differ from Llama's class."""
    text = {
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "rms_norm_eps": 1e-05,
        "torch_dtype": "float16",
        "vocab_size": 32064,
    }
    config = {"model_type": "llava", "text_config": text, "vision_config": {"depth": 24}}
    found = outcome(config, tensors_for(config))
    assert isinstance(found, ModelConfig), found
    assert (found.n_layers, found.hidden_size, found.heads.n_kv_heads) == (32, 4096, 32)
    assert found.ffn_size(0) == 11008


@pytest.mark.reference
def test_the_table_is_what_the_references_read_now() -> None:
    check_goldens(FIELDS)
