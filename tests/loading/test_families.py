"""Every family: both kinds of file become the program that is expected, and its tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from family_cases import FAMILIES, HEADS, second, stacked
from family_files import CONTEXT, EXPERTS, FFN, Family, hf_arrays, merged, write_gguf, write_hf
from safetensors.numpy import load_file, save_file

from lanewise.loading.checkpoint import Checkpoint, ModelFileError, Role, Tensor
from lanewise.loading.families.table import FAMILIES as TABLE
from lanewise.loading.formats import TensorType
from lanewise.loading.gguf_writer import metadata_of
from lanewise.loading.json_files import Fields
from lanewise.loading.opening import open_checkpoint
from lanewise.loading.packed_checkpoint import read_config
from lanewise.loading.packed_writer import packed_config
from lanewise.loading.program import Experts, Gated

IN_GGUF = [name for name, family in FAMILIES.items() if family.arch]


def values_of(tensor: Tensor) -> np.ndarray:
    """The values in the order that the library has them in."""
    values = np.frombuffer(tensor.data, np.float32).reshape(tensor.rows, tensor.cols)
    if tensor.rope_heads:
        flat = values if tensor.rows > 1 else values.T
        halves = flat.reshape(tensor.rope_heads, -1, 2, flat.shape[1])
        values = halves.swapaxes(1, 2).reshape(values.shape)
    return values if tensor.rows > 1 else values[0]


def check(checkpoint: Checkpoint, family: Family) -> None:
    assert checkpoint.config == family.program()
    expected = family.weights()
    assert [(t.role, t.layer) for t in checkpoint.tensors] == list(expected)
    for tensor in checkpoint.tensors:
        np.testing.assert_array_equal(
            values_of(tensor), expected[tensor.role, tensor.layer], tensor.name
        )
        tensor.release()


def test_every_row_of_the_table_is_tested() -> None:
    assert {family.name for family in TABLE} == {*FAMILIES, "mistral"}


@pytest.mark.parametrize("name", FAMILIES)
def test_hugging_face(name: str, tmp_path: Path) -> None:
    with open_checkpoint(write_hf(tmp_path / "hf", FAMILIES[name])) as checkpoint:
        check(checkpoint, FAMILIES[name])


@pytest.mark.parametrize("name", IN_GGUF)
def test_gguf(name: str, tmp_path: Path) -> None:
    with open_checkpoint(write_gguf(tmp_path / "m.gguf", FAMILIES[name])) as checkpoint:
        check(checkpoint, FAMILIES[name])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_packed_directory_holds_the_program(name: str, tmp_path: Path) -> None:
    with open_checkpoint(write_hf(tmp_path / "hf", FAMILIES[name])) as checkpoint:
        stored = packed_config(checkpoint)["quantization_config"]
        assert read_config(Fields(stored, "config.json"), 1000) == checkpoint.config


def test_stacked_experts_are_those_of_one_tensor_each(tmp_path: Path) -> None:
    family = FAMILIES["qwen3_moe"]
    folder = write_hf(tmp_path / "hf", family)
    arrays = stacked(hf_arrays(family, family.weights()))
    arrays = merged(arrays, "experts.gate_up_proj", "experts.gate_proj", "experts.up_proj")
    assert arrays["model.layers.1.mlp.experts.gate_up_proj"].shape == (4, 64, 64)
    save_file(arrays, folder / "model.safetensors")
    with open_checkpoint(folder) as checkpoint:
        check(checkpoint, family)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "hf", FAMILIES["qwen3_moe"])
    arrays = load_file(folder / "model.safetensors")
    del arrays["model.layers.1.mlp.experts.3.up_proj.weight"]
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"3 of the 4 tensors '.*experts\.0\.up_proj"):
        open_checkpoint(folder)


def test_experts_that_differ_are_named(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "hf", FAMILIES["qwen3_moe"])
    arrays = load_file(folder / "model.safetensors")
    arrays["model.layers.1.mlp.experts.3.up_proj.weight"] = np.zeros((32, 32), np.float32)
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"experts\.3\.up_proj\.weight' is F32 \[32, 32\]"):
        open_checkpoint(folder)


def test_codes_of_mxfp4_are_those_of_gguf_blocks(tmp_path: Path) -> None:
    """Byte j of 16 holds inputs 2 j and 2 j + 1; that of a block of GGUF's j and j + 16."""
    family = FAMILIES["gpt_oss"]
    folder = write_hf(tmp_path / "hf", family)
    arrays = load_file(folder / "model.safetensors")
    random = np.random.default_rng(5)
    codes, scales = {}, {}
    for part, rows, inputs in (("gate_up_proj", 64, 64), ("down_proj", 64, 32)):
        codes[part] = random.integers(0, 16, (4, rows, inputs), np.uint8)
        scales[part] = random.integers(100, 140, (4, rows, inputs // 32), np.uint8)
        packed = codes[part][..., 0::2] | codes[part][..., 1::2] << 4
        for layer in range(2):
            prefix = f"model.layers.{layer}.mlp.experts.{part}"
            del arrays[prefix]
            arrays[f"{prefix}_blocks"] = packed.reshape(4, rows, -1, 16)
            arrays[f"{prefix}_scales"] = scales[part]
    save_file(arrays, folder / "model.safetensors")
    turns = {Role.EXPERTS_GATE: slice(0, None, 2), Role.EXPERTS_UP: slice(1, None, 2)}
    with open_checkpoint(folder) as checkpoint:
        found = {t.role: t for t in checkpoint.tensors if t.layer == 1}
        for role, turn in (turns | {Role.EXPERTS_DOWN: slice(None)}).items():
            part = "down_proj" if role == Role.EXPERTS_DOWN else "gate_up_proj"
            assert found[role].type == TensorType.MXFP4
            blocks = np.frombuffer(found[role].data, np.uint8).reshape(-1, 17)
            np.testing.assert_array_equal(blocks[:, 0], scales[part][:, turn].reshape(-1))
            inputs = np.concatenate([blocks[:, 1:] & 15, blocks[:, 1:] >> 4], axis=1)
            np.testing.assert_array_equal(inputs, codes[part][:, turn].reshape(-1, 32))


def test_fused_experts_of_gguf_are_taken_apart(tmp_path: Path) -> None:
    plain = FAMILIES["qwen3_moe"]
    fused = Family(
        plain.name,
        plain.arch,
        second(HEADS, Experts(**vars(EXPERTS) | {"renormalize": True})),
        plain.config,
        plain.metadata,
        gguf=lambda arrays: merged(arrays, "ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps"),
    )
    with open_checkpoint(write_gguf(tmp_path / "m.gguf", fused)) as checkpoint:
        check(checkpoint, plain)


@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_layers_without_positions(kind: str, tmp_path: Path) -> None:
    """Every fourth; a file of four layers has the tensors of two, and the program is enough."""
    family = FAMILIES["smollm3"]
    family = Family(
        family.name, family.arch, family.layers * 2, {"num_hidden_layers": 4}, {"block_count": 4}
    )
    write = write_hf if kind == "hf" else write_gguf
    with open_checkpoint(write(tmp_path / ("hf" if kind == "hf" else "m.gguf"), family)) as found:
        ropes = [layer.attention.rope for layer in found.config.layers]
        assert ropes == [0, 0, 0, None]


def test_the_short_factors_are_those_of_short_contexts(tmp_path: Path) -> None:
    family = FAMILIES["phi3"]
    hf = write_hf(tmp_path / "hf", family, {"max_position_embeddings": 128})
    changes = {"context_length": 128, "rope.scaling.attn_factor": 1.0}
    file = write_gguf(tmp_path / "m.gguf", family, changes)
    with open_checkpoint(hf) as one, open_checkpoint(file) as other:
        assert one.config.ropes == other.config.ropes
        assert one.config.ropes[0].factors == (1.25,) * 6
        assert one.config.ropes[0].scale == 1.0


def test_yarn_extends_a_context_that_the_config_left_where_it_was(tmp_path: Path) -> None:
    family = FAMILIES["qwen3"]
    hf = write_hf(tmp_path / "hf", family, {"max_position_embeddings": 64})
    file = write_gguf(tmp_path / "m.gguf", family, {"context_length": 64})
    with open_checkpoint(hf) as one, open_checkpoint(file) as other:
        assert one.config == other.config
        assert one.config.context_length == CONTEXT


def test_dynamic_scaling_is_none_within_the_context(tmp_path: Path) -> None:
    scaling = {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
    with open_checkpoint(write_hf(tmp_path / "hf", FAMILIES["llama"], scaling)) as checkpoint:
        assert checkpoint.config == FAMILIES["llama"].program()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen3_moe", {"num_experts_per_tok": 5}, "5 experts are used of 4"),
        ("qwen3_moe", {"moe_intermediate_size": 24}, "experts of 24; a multiple of 32"),
        ("qwen3_moe", {"mlp_only_layers": 3}, "mlp_only_layers is 3; a list of layers"),
        ("qwen3_moe", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("glm4_moe", {"n_group": 3}, "1 of 3 groups of 4 experts"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is 8.0; null"),
        ("gpt_oss", {"layer_types": ["full_attention"]}, "layer_types is ['full_attention']"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers is [1]; 2 times 1"),
        ("phi3", {"rope_scaling": {"type": "longrope"}}, "long_factor is missing"),
        ("qwen3", {"rope_scaling": {"type": "yarn", "factor": "x"}}, "factor is 'x'"),
    ],
)
def test_what_cannot_be_a_program_is_explained(
    name: str, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(write_hf(tmp_path / "hf", FAMILIES[name], changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("seed_oss", "whose files have tensors of their own names"),
        ("qwen3_moe", "--gguf cannot write experts yet"),
        ("granite", "--gguf cannot write attention scores scaled by"),
    ],
)
def test_a_gguf_that_others_would_misread_is_not_written(
    name: str, says: str, tmp_path: Path
) -> None:
    with (
        open_checkpoint(write_hf(tmp_path / "hf", FAMILIES[name])) as checkpoint,
        pytest.raises(ModelFileError, match=says),
    ):
        metadata_of(checkpoint, ["f32"], {})


def test_dense_layers_of_a_mixture_are_gated() -> None:
    first, last = FAMILIES["glm4_moe"].program().layers
    assert first.ffn == Gated(FFN)
    assert isinstance(last.ffn, Experts)
