"""Every family: both kinds of file become one program and the same tensors.

That the program is the right one is what tests/correctness/test_families.py shows, by its logits.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from family_gguf import CONVERSIONS, GGUF_CASES, gguf_arrays, stacked, write_gguf
from family_models import family_model, write_case, write_model
from gguf_states import MULTIPLIED, REORDERED
from lanewise.loading.base.checkpoint import ModelFileError, Role, Tensor
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import Experts, Gated
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.checkpoints.packed_checkpoint import read_config
from lanewise.loading.writing.gguf_writer import metadata_of
from lanewise.loading.writing.packed_writer import packed_config
from lanewise_quantizer.storage import decode_rows
from published_configs import CASES, CONTEXT


def values_of(tensor: Tensor) -> np.ndarray:
    """The values in the order that the library has them in."""
    stored = np.frombuffer(tensor.data, np.uint8).reshape(tensor.rows, -1)
    table = None if tensor.table is None else np.frombuffer(tensor.table, np.int8)
    values = decode_rows(tensor.type.name.lower(), stored, tensor.cols, table)
    if tensor.rope_heads:
        flat = values if tensor.rows > 1 else values.T
        halves = flat.reshape(tensor.rope_heads, -1, 2, flat.shape[1])
        values = halves.swapaxes(1, 2).reshape(values.shape)
    return values if tensor.rows > 1 else values[0]


def check_same(one: Path, other: Path) -> None:
    """Two files have one program and the same values; only a family may have another name."""
    with open_checkpoint(one) as a, open_checkpoint(other) as b:
        assert replace(a.config, architecture="") == replace(b.config, architecture="")
        assert [(t.role, t.layer) for t in a.tensors] == [(t.role, t.layer) for t in b.tensors]
        for first, second in zip(a.tensors, b.tensors, strict=True):
            np.testing.assert_array_equal(values_of(first), values_of(second), first.name)


@pytest.mark.parametrize(
    "name", [name for name in GGUF_CASES if name not in (*REORDERED, *MULTIPLIED)]
)
def test_a_gguf_file_is_the_same_model(name: str, tmp_path: Path) -> None:
    file = write_gguf(family_model(name), tmp_path / "m.gguf")
    check_same(write_case(name, tmp_path / "hf"), file)


ARCHES = {CONVERSIONS[name].arch: name for name in reversed(GGUF_CASES)}  # a case of each


def fused_heads(arrays: dict[str, Any]) -> dict[str, Any]:
    """Q, K and V in one, as the public converter writes them with --fuse-qkv."""
    found = dict(arrays)
    for name in arrays:
        parts = [name.replace(".attn_q.", f".attn_{part}.") for part in "qkv"]
        if ".attn_q." in name and all(part in arrays for part in parts):
            whole = name.replace(".attn_q.", ".attn_qkv.")
            found[whole] = np.concatenate([found.pop(part) for part in parts])
    return found


@pytest.mark.parametrize("name", ARCHES.values())
def test_queries_keys_and_values_in_one_are_the_same_model(name: str, tmp_path: Path) -> None:
    model = family_model(name)
    arrays = gguf_arrays(model)
    if (fused := fused_heads(arrays)).keys() == arrays.keys():  # of latents, or always in one
        assert {f"blk.0.attn_{part}.weight" for part in ("kv_a_mqa", "qkv", "kv")} & arrays.keys()
        return
    plain = write_gguf(model, tmp_path / "plain.gguf")
    check_same(plain, write_gguf(model, tmp_path / "fused.gguf", tensors=fused))


def test_fused_heads_of_another_size_are_explained(tmp_path: Path) -> None:
    model = family_model("qwen3")
    fused = fused_heads(gguf_arrays(model))
    fused["blk.1.attn_qkv.weight"] = fused["blk.1.attn_qkv.weight"][:-1]
    path = write_gguf(model, tmp_path / "m.gguf", tensors=fused)
    with pytest.raises(ModelFileError, match=r"'blk.1.attn_qkv.weight' is F32 \[191, 64\]; 192"):
        open_checkpoint(path)


@pytest.mark.parametrize("name", CASES)
def test_a_packed_directory_holds_the_program(name: str, tmp_path: Path) -> None:
    with open_checkpoint(write_case(name, tmp_path / "hf")) as checkpoint:
        stored = packed_config(checkpoint)["quantization_config"]
        assert read_config(Fields(stored, "config.json"), 1000) == checkpoint.config


def merged(arrays: dict[str, Any], into: str, *parts: str, axis: int) -> dict[str, Any]:
    """Tensors whose names have these parts, in order, as one."""
    found = {}
    for name, array in arrays.items():
        if parts[0] in name:
            each = [arrays[name.replace(parts[0], part)] for part in parts]
            found[name.replace(parts[0], into)] = np.concatenate(each, axis)
        elif not any(part in name for part in parts):
            found[name] = array
    return found


def test_stacked_experts_are_those_of_one_tensor_each(tmp_path: Path) -> None:
    model = family_model("qwen3_moe")
    arrays = stacked(model.tensors)
    arrays = {n.removesuffix(".weight") if ".experts." in n else n: a for n, a in arrays.items()}
    parts = ("experts.gate_up_proj", "experts.gate_proj", "experts.up_proj")
    arrays = merged(arrays, *parts, axis=1)
    assert arrays["model.layers.1.mlp.experts.gate_up_proj"].shape == (8, 64, 64)
    other = write_model(replace(model, tensors=arrays), tmp_path / "stacked")
    check_same(write_model(model, tmp_path / "hf"), other)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    folder = write_case("qwen3_moe", tmp_path / "hf")
    arrays = load_file(folder / "model.safetensors")
    del arrays["model.layers.1.mlp.experts.3.up_proj.weight"]
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"7 of the 8 tensors '.*experts\.0\.up_proj"):
        open_checkpoint(folder)


def test_experts_that_differ_are_named(tmp_path: Path) -> None:
    folder = write_case("qwen3_moe", tmp_path / "hf")
    arrays = load_file(folder / "model.safetensors")
    arrays["model.layers.1.mlp.experts.3.up_proj.weight"] = np.zeros((32, 32), np.float32)
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"experts\.3\.up_proj\.weight' is F32 \[32, 32\]"):
        open_checkpoint(folder)


def test_codes_of_mxfp4_are_those_of_gguf_blocks(tmp_path: Path) -> None:
    """Byte j of 16 holds inputs 2 j and 2 j + 1; that of a block of GGUF's j and j + 16."""
    model = family_model("gpt_oss_mxfp4")
    turns = {Role.EXPERTS_GATE: slice(0, None, 2), Role.EXPERTS_UP: slice(1, None, 2)}
    with open_checkpoint(write_model(model, tmp_path / "hf")) as checkpoint:
        found = {t.role: t for t in checkpoint.tensors if t.layer == 1}
        for role, turn in (turns | {Role.EXPERTS_DOWN: slice(None)}).items():
            part = "down_proj" if role == Role.EXPERTS_DOWN else "gate_up_proj"
            prefix = f"model.layers.1.mlp.experts.{part}"
            packed = model.tensors[f"{prefix}_blocks"][:, turn]
            scales = model.tensors[f"{prefix}_scales"][:, turn]
            assert found[role].type == TensorType.MXFP4
            blocks = np.frombuffer(found[role].data, np.uint8).reshape(-1, 17)
            np.testing.assert_array_equal(blocks[:, 0], scales.reshape(-1))
            inputs = np.concatenate([blocks[:, 1:] & 15, blocks[:, 1:] >> 4], axis=1)
            codes = np.stack([packed & 15, packed >> 4], axis=-1)
            np.testing.assert_array_equal(inputs, codes.reshape(-1, 32))


def test_fused_experts_of_gguf_are_taken_apart(tmp_path: Path) -> None:
    model = family_model("qwen3_moe")
    parts = ("ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps")
    fused = merged(gguf_arrays(model), *parts, axis=1)
    file = write_gguf(model, tmp_path / "m.gguf", tensors=fused)
    check_same(write_model(model, tmp_path / "hf"), file)


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    """GLM's count as layers in GGUF; those of directories are behind the last, or have a name."""
    glm, ernie = family_model("glm4_moe"), family_model("ernie4_5_moe")
    further = {"model.layers.3.eh_proj.weight": np.zeros((4, 4), np.float32)}
    longer = write_model(replace(glm, tensors=glm.tensors | further), tmp_path / "longer")
    keys = {"block_count": 4, "nextn_predict_layers": 1}
    arrays = gguf_arrays(glm) | {"blk.3.nextn.eh_proj.weight": np.zeros((4, 4), np.float32)}
    file = write_gguf(glm, tmp_path / "m.gguf", keys, arrays)
    plain = write_model(glm, tmp_path / "glm")
    check_same(plain, longer)
    check_same(plain, file)
    further = {"model.mtp_block.0.norm.weight": np.zeros(4, np.float32)}
    longer = write_model(replace(ernie, tensors=ernie.tensors | further), tmp_path / "mtp")
    check_same(write_model(ernie, tmp_path / "ernie"), longer)


def test_a_bias_that_is_one_row_of_a_matrix(tmp_path: Path) -> None:
    """As the public converter leaves that of ERNIE's choice."""
    model = family_model("ernie4_5_moe")
    arrays = {n: a[None] if "exp_probs_b" in n else a for n, a in gguf_arrays(model).items()}
    assert any(array.shape == (1, 8) for array in arrays.values())
    file = write_gguf(model, tmp_path / "m.gguf", tensors=arrays)
    check_same(write_model(model, tmp_path / "hf"), file)


def test_layers_without_positions(tmp_path: Path) -> None:
    """As a list, as an interval, and in GGUF, which leaves them to the reader."""
    paths = (
        write_case("smollm3", tmp_path / "list"),
        write_case("smollm3", tmp_path / "interval", no_rope_layers=None),
        write_gguf(family_model("smollm3"), tmp_path / "m.gguf"),
    )
    for path in paths:
        with open_checkpoint(path) as found:
            assert [layer.attention.rope for layer in found.config.layers] == [0, 0, 0, None]


def test_the_short_factors_are_those_of_short_contexts(tmp_path: Path) -> None:
    name = "phi3_longrope"
    hf = write_case(name, tmp_path / "hf", max_position_embeddings=32)
    changes = {"context_length": 32, "rope.scaling.attn_factor": 1.0}
    file = write_gguf(family_model(name), tmp_path / "m.gguf", changes)
    with open_checkpoint(hf) as one, open_checkpoint(file) as other:
        assert one.config.ropes == other.config.ropes
        assert one.config.ropes[0].factors == tuple(1 + 0.125 * i for i in range(8))
        assert one.config.ropes[0].scale == 1.0


@pytest.mark.parametrize("truncate", [True, False])
def test_the_ramp_of_yarn(truncate: bool, tmp_path: Path) -> None:
    """From the dimension that turns 32 times in the original context to the one that does once."""
    scaling = CASES["gpt_oss"]["rope_scaling"] | {"truncate": truncate}
    folder = write_case("gpt_oss", tmp_path / "hf", rope_scaling=scaling)
    with open_checkpoint(folder) as checkpoint:
        (rope,) = checkpoint.config.ropes
    turns = (math.log(64 / (n * 2 * math.pi)) * 24 / (2 * math.log(150000)) for n in (32, 1))
    low, high = turns
    low, high = max(math.floor(low) if truncate else low, 0), math.ceil(high) if truncate else high
    ramp = [min(max((i - low) / (high - low), 0), 1) for i in range(12)]
    assert rope.factors == pytest.approx([1 / (1 - r + r / 4) for r in ramp], rel=1e-6)
    assert rope.scale == pytest.approx(0.1 * math.log(4) + 1, rel=1e-6)


def test_yarn_extends_a_context_that_the_config_left_where_it_was(tmp_path: Path) -> None:
    hf = write_case("qwen3", tmp_path / "hf", max_position_embeddings=64)
    file = write_gguf(family_model("qwen3"), tmp_path / "m.gguf", {"context_length": 64})
    with open_checkpoint(hf) as one, open_checkpoint(file) as other:
        assert one.config == other.config
        assert one.config.context_length == CONTEXT


def test_dynamic_scaling_is_none_within_the_context(tmp_path: Path) -> None:
    plain = write_case("llama_dynamic", tmp_path / "plain", rope_scaling=None)
    check_same(write_case("llama_dynamic", tmp_path / "hf"), plain)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen3_moe", {"num_experts_per_tok": 9}, "FFN: n_used is 9, must be 1 to 8"),
        ("qwen3_moe", {"moe_intermediate_size": 24}, "FFN: size 24, shared_size 0"),
        ("qwen3_moe", {"mlp_only_layers": 3}, "mlp_only_layers is 3; a list of layers"),
        ("qwen3_moe", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("glm4_moe", {"n_group": 3}, "8 experts do not make 3 equal groups"),
        ("olmoe", {"clip_qkv": -1.0}, "clip_qkv is -1.0; a positive finite number"),
        ("olmo", {"clip_qkv": 0}, "clip_qkv is 0; a positive finite number"),
        ("gpt_oss", {"layer_types": ["full_attention"]}, "layer_types is ['full_attention']"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers is [1]; 4 times 1"),
        ("phi3", {"rope_scaling": {"type": "longrope"}}, "long_factor is missing"),
        ("qwen3", {"rope_scaling": {"type": "yarn", "factor": "x"}}, "factor is 'x'"),
        ("gemma", {"hidden_act": "relu"}, "hidden_act is 'relu'; 'gelu'"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ("gemma4_small", {"num_kv_shared_layers": 5}, "layer 1 has no layer of its kind"),
        ("gemma4_small", {"hidden_size_per_layer_input": 8}, "needs [256, 48]"),
        ("gemma4", {"enable_moe_block": True}, "num_experts"),
        ("cohere", {"use_qk_norm": True}, "missing tensors"),
        ("cohere2", {"use_qk_norm": True}, "use_qk_norm is True; False"),
        ("cohere2", {"use_parallel_block": False}, "use_parallel_block is False; True"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm is True; false"),
        ("exaone4", {"sliding_window_pattern": "LLX"}, "sliding_window_pattern is 'LLX'"),
        ("hunyuan", {"use_cla": True}, "use_cla is True; False"),
        ("apertus", {"hidden_act": "silu"}, "hidden_act is 'silu'; 'xielu'"),
        ("glm4", {"partial_rotary_factor": 0.3}, "a share of 24 that is an even number"),
        ("stablelm", {"qk_layernorm": True}, "missing tensors"),
        ("starcoder2", {"norm_epsilon": None}, "norm_epsilon is None; a positive finite"),
        ("minicpm", {"num_experts": 8}, "num_experts is 8; 0"),
    ],
)
def test_what_cannot_be_a_program_is_explained(
    name: str, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(write_case(name, tmp_path / "hf", **changes))
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
        open_checkpoint(write_case(name, tmp_path / "hf")) as checkpoint,
        pytest.raises(ModelFileError, match=says),
    ):
        metadata_of(checkpoint, ["f32"], {})


def test_dense_layers_of_a_mixture_are_gated(tmp_path: Path) -> None:
    with open_checkpoint(write_case("glm4_moe", tmp_path / "hf")) as checkpoint:
        first, *others = (layer.ffn for layer in checkpoint.config.layers)
    assert first == Gated(96)
    assert all(isinstance(ffn, Experts) and ffn.n == 8 for ffn in others)


def test_gemma_3_as_a_part_whose_config_leaves_out_much(tmp_path: Path) -> None:
    """As those of 4B to 27B, which see pictures too."""
    config = family_model("gemma3").config
    text = {
        key: config[key]
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "sliding_window")
    }
    names = ("vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    given = {key: config[key] for key in names}
    text["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    whole = {"model_type": "gemma3", "vision_config": {"hidden_size": 8}}
    model = family_model("gemma3")
    tensors = {f"language_model.{name}": tensor for name, tensor in model.tensors.items()}
    tensors["vision_tower.vision_model.embeddings.weight"] = np.zeros((2, 2), np.float32)
    path = tmp_path / "part"
    write_model(replace(model, tensors=tensors), path, whole | {"text_config": text | given})
    with (
        open_checkpoint(path) as found,
        open_checkpoint(write_case("gemma3", tmp_path / "hf")) as plain,
    ):
        layers = [
            replace(layer, attention=replace(layer.attention, score_scale=256**-0.5))
            for layer in plain.config.layers
        ]
        assert found.config == replace(plain.config, context_length=131072, layers=tuple(layers))
    write_model(replace(model, tensors=tensors), tmp_path / "big", whole | {"text_config": text})
    with pytest.raises(ModelFileError, match=r"embed_tokens.weight' .* needs \[262208, 64\]"):
        open_checkpoint(tmp_path / "big")
