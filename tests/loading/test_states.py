"""Layers with a state: what their files say in several ways, and what is refused of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from family_gguf import gguf_arrays, stacked, write_gguf
from family_models import Arrays, FamilyModel, family_model, write_case, write_model
from gguf_states import REORDERED
from lanewise.loading.adapters.lora import open_adapter
from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Role
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.program import (
    Layer,
    ModelConfig,
)
from lanewise.loading.base.recurrences import (
    GatedDelta,
    ShortConv,
    Ssd,
)
from lanewise.loading.base.sources import SourceTensor
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.files.rearranging import Rearranged, to_f32
from lanewise.loading.programs.native_program import layer_shapes
from lora_files import lora_config, write_adapter
from published_configs import CASES

# Of which no file has rows; numbers of those are not made.
MANY_HEADS = {"num_attention_heads": 2**30, "num_key_value_heads": 2}


def program_of(path: Path) -> ModelConfig:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.config


def values_of(checkpoint: Checkpoint) -> dict[tuple[Role, int], bytes]:
    return {(t.role, t.layer): bytes(t.data) for t in checkpoint.tensors}


def check_same(one: Path, other: Path) -> None:
    with open_checkpoint(one) as a, open_checkpoint(other) as b:
        assert a.config == b.config
        assert values_of(a) == values_of(b)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("lfm2", {"conv_bias": True}, "conv_bias is True; false (these biases"),
        ("lfm2", {"conv_L_cache": 9}, "state: taps is 9, must be 2 to 8"),
        ("lfm2", {"full_attn_idxs": []}, "no layer has attention; one is needed"),
        ("lfm2", {"full_attn_idxs": "1"}, "full_attn_idxs is '1'; a list of layers from 0 to 3"),
        ("lfm2", {"full_attn_idxs": [1, 4]}, "full_attn_idxs is [1, 4]; a list of layers"),
        ("lfm2", {"layer_types": ["conv"]}, "layer_types is ['conv']; 4 times 'conv' or"),
        ("lfm2", {"use_pos_enc": False}, "use_pos_enc is False; true"),
        ("qwen3_next", {"attention_bias": True}, "attention_bias is True; false"),
        ("qwen3_next", {"linear_key_head_dim": 24}, "key_dim is 24, must be a multiple of 16"),
        ("qwen3_next", {"linear_num_key_heads": 4}, "6 heads cannot share 4 key heads evenly"),
        ("qwen3_next", MANY_HEADS, "n_heads is 1073741824, must be 1 to 1024"),
        (
            "qwen3_next",
            {"linear_num_value_heads": 2**30},
            "state: n_heads is 1073741824, must be 1 to 1024",
        ),
        ("qwen3_5", {"attn_output_gate": False}, "attn_output_gate is False; true"),
        ("granitemoehybrid", {"time_step_limit": [0.1, 1.0]}, "[0.1, 1.0]; [0, Infinity] (steps"),
        ("granitemoehybrid", {"mamba_d_head": 8}, "mamba_d_head is 8; 128 divided by"),
        ("granitemoehybrid", {"num_experts_per_tok": 0}, "num_experts_per_tok is 0; a whole"),
        ("granitemoehybrid", {"mamba_proj_bias": True}, "mamba_proj_bias is True; false (these"),
        ("nemotron_h", {"use_bias": True}, "use_bias is True; false (these biases are not"),
        (
            "nemotron_h_latent",
            {"moe_latent_size": 48},
            "FFN: latent_size is 48, must be a",
        ),
        ("nemotron_h_moe", {"n_shared_experts": 2}, "n_shared_experts is 2; 1 is needed"),
        ("nemotron_h_moe", {"moe_intermediate_size": 48}, "FFN: size 48, shared_size 64 and"),
        ("nemotron_h", {"hybrid_override_pattern": "M?*-MM"}, "hybrid_override_pattern is 'M?*"),
        ("nemotron_h", {"hybrid_override_pattern": ""}, "hybrid_override_pattern is ''"),
        ("nemotron_h", {"hybrid_override_pattern": None}, "layer_types is missing; a kind for"),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act is 'silu'; 'relu2'"),
        (
            "falcon_h1",
            {"mamba_rms_norm": True, "mamba_norm_before_gate": True},
            "before_gate is True",
        ),
        ("lfm3", {"conv_bias": True}, "conv_bias is True; false (these biases"),
        ("lfm3", {"layer_types": ["conv"] * 4}, "5 times 'full_attention' or 'sliding_attention'"),
        ("lfm3", {"layer_types": ["conv"] * 5}, "layers has attention, one must have"),
        ("falcon_h1", {"mamba_d_head": 8}, "mamba_d_head is 8; 96 divided by the number of heads"),
        ("falcon_h1", {"mlp_multipliers": [1.0]}, "mlp_multipliers is [1.0]; 2 numbers"),
        ("falcon_h1", {"ssm_multipliers": [1, 1, 1, 1, 0]}, "ssm_multipliers is 0; a positive"),
        ("falcon_h1", {"key_multiplier": -1.0}, "key_multiplier is -1.0; a positive"),
        ("falcon_h1", {"projectors_bias": True}, "projectors_bias is True; false"),
        ("falcon_h1", {"mlp_bias": True}, "mlp_bias is True; false"),
        ("nemotron_h", {"n_groups": 4}, "n_groups is 4; a divisor of the number of heads, 6,"),
    ],
)
def test_what_cannot_be_a_program_is_explained(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(write_case(name, tmp_path / "hf", **changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("lfm2", {"attention.head_count_kv": 2}, "head_count_kv is 2; a number for each layer"),
        ("lfm2", {"attention.head_count_kv": [0, 2, 0, 4]}, "4 numbers, 0 or one other"),
        ("lfm2", {"attention.head_count_kv": [0] * 4}, "4 numbers, 0 or one other"),
        ("qwen3_next", {"ssm.time_step_rank": 5}, "ssm.inner_size is 96; a multiple of 5"),
        ("qwen3_next", {"nextn_predict_layers": 4}, "nextn_predict_layers is 4; a number below"),
        ("nemotron_h", {"feed_forward_length": 96}, "feed_forward_length is 96; 6 numbers"),
        ("nemotron_h", {"feed_forward_length": [0, -1] * 3}, "feed_forward_length is -1; a whole"),
        ("nemotron_h", {"ssm.group_count": 5}, "ssm.inner_size is 96; a multiple of 6 and 5"),
        ("nemotron_h_latent", {"moe_latent_size": 96}, "FFN: latent_size is 96, must be 0 to 64"),
        ("nemotron_h_moe", {"expert_gating_func": 1}, "expert_gating_func is 1; 2 is needed"),
    ],
)
def test_metadata_that_cannot_be_a_program_are_explained(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(write_gguf(family_model(name), tmp_path / "m.gguf", changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("lfm2", "conv.conv.weight"),
        ("qwen3_next", "conv1d.weight"),
        ("nemotron_h", "conv1d.weight"),
        ("falcon_h1", "conv1d.weight"),
    ],
)
def test_taps_are_rows_of_a_channel(name: str, end: str, tmp_path: Path) -> None:
    """The same numbers of values the other way round are refused, in files of both kinds."""
    model, taps = family_model(name), 3 if name == "lfm2" else 4
    of_hf = turned(model.tensors, end)
    hf = write_model(replace(model, tensors=of_hf), tmp_path / "hf")
    end = "shortconv.conv.weight" if name == "lfm2" else "ssm_conv1d.weight"
    of_gguf = turned(gguf_arrays(model), end)
    for path in (hf, write_gguf(model, tmp_path / "m.gguf", tensors=of_gguf)):
        with pytest.raises(ModelFileError, match=f"rows of {taps} values are needed"):
            open_checkpoint(path)


def turned(arrays: Arrays, end: str) -> Arrays:
    """The arrays whose names have this end as matrices with columns for rows."""
    found = {n: a.reshape(len(a), -1) for n, a in arrays.items() if n.endswith(end)}
    assert found
    return arrays | {n: np.ascontiguousarray(a.T) for n, a in found.items()}


def test_layers_with_attention_are_named_or_numbered(tmp_path: Path) -> None:
    kinds = ["conv", "full_attention"] * 2
    named = write_case("lfm2", tmp_path / "names", full_attn_idxs=None, layer_types=kinds)
    check_same(write_case("lfm2", tmp_path / "numbers"), named)


def test_layers_of_nemotron_are_letters_or_names(tmp_path: Path) -> None:
    kinds = ["mamba", "mlp", "mamba", "attention", "mlp", "mamba"]
    changes = {"hybrid_override_pattern": None, "layers_block_type": kinds}
    named = write_case("nemotron_h", tmp_path / "names", **changes)
    check_same(write_case("nemotron_h", tmp_path / "letters"), named)
    config = program_of(named)
    assert [kinds_of(layer) for layer in config.layers] == ["s", "f", "s", "a", "f", "s"]
    assert (config.heads.rope, config.has_states) == (None, True)


def test_experts_of_nemotron_are_one_by_one_or_stacked(tmp_path: Path) -> None:
    """And what guesses further tokens is left out."""
    model = family_model("nemotron_h_moe")
    arrays: Arrays = {"mtp.layers.0.norm.weight": np.ones(64, np.float32)}
    for name, array in stacked(model.tensors).items():
        whole = name.removesuffix(".weight") if ".experts." in name else name
        arrays[whole.replace("backbone.", "model.")] = array
    assert arrays["model.layers.1.mixer.experts.up_proj"].shape == (8, 32, 64)
    other = write_model(FamilyModel(model.name, model.config, arrays), tmp_path / "stacked")
    check_same(write_model(model, tmp_path / "single"), other)


def kinds_of(layer: Layer) -> str:
    parts = {"a": layer.attention, "s": layer.state, "f": layer.ffn}
    return "".join(name for name, part in parts.items() if part is not None)


def test_infinity_that_json_may_not_know(tmp_path: Path) -> None:
    plain = write_case("granitemoehybrid", tmp_path / "plain")
    for number, infinity in enumerate((float("inf"), {"__float__": "Infinity"})):
        other = tmp_path / str(number)
        check_same(plain, write_case("granitemoehybrid", other, time_step_limit=[0.0, infinity]))


def test_first_files_of_qwen3_next_have_all_inputs_in_one(tmp_path: Path) -> None:
    """As it lies in directories: what a head of keys has together."""
    model = family_model("qwen3_next")
    arrays: Arrays = {}
    for name, array in gguf_arrays(model).items():
        number = name.split(".")[1]
        if name.endswith("attn_qkv.weight"):
            whole = f"model.layers.{number}.linear_attn.in_proj_qkvz.weight"
            arrays[f"blk.{number}.ssm_in.weight"] = model.tensors[whole]
        elif not name.endswith("attn_gate.weight"):
            arrays[name] = array
    old = write_gguf(model, tmp_path / "old.gguf", tensors=arrays)
    check_same(write_gguf(model, tmp_path / "new.gguf"), old)


@pytest.mark.parametrize("name", REORDERED)
def test_heads_in_another_order_are_said_to_be(name: str, tmp_path: Path) -> None:
    one = program_of(write_case(name, tmp_path / "hf"))
    other = program_of(write_gguf(family_model(name), tmp_path / "m.gguf"))
    back = tuple(
        replace(layer, state=replace(layer.state, keys_in_turn=False))
        if isinstance(layer.state, GatedDelta)
        else layer
        for layer in other.layers
    )
    assert other != one == replace(other, layers=back)


def wrapped(model: FamilyModel, folder: Path) -> Path:
    """A directory as it is published: with a tower, and what guesses further tokens."""
    text = {"model.": "model.language_model.", "lm_head.": "lm_head."}
    arrays = {
        new + name.removeprefix(old): array
        for name, array in model.tensors.items()
        for old, new in text.items()
        if name.startswith(old)
    }
    arrays["model.visual.blocks.0.norm1.weight"] = np.zeros(4, np.float32)
    arrays["mtp.layers.0.input_layernorm.weight"] = np.zeros(4, np.float32)
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": CASES[model.name],
        "vision_config": {"depth": 1, "model_type": "qwen3_5"},
        "vision_start_token_id": 3,
        "tie_word_embeddings": False,
    }
    return write_model(replace(model, tensors=arrays), folder, config)


def test_the_language_model_of_a_published_qwen3_5(tmp_path: Path) -> None:
    model = family_model("qwen3_5")
    check_same(write_model(model, tmp_path / "text"), wrapped(model, tmp_path / "whole"))


def test_layers_that_guess_further_tokens_are_left_out_of_gguf(tmp_path: Path) -> None:
    model = family_model("qwen3_5")
    keys = {"block_count": 5, "nextn_predict_layers": 1}
    arrays = gguf_arrays(model) | {"blk.4.nextn.eh_proj.weight": np.zeros((4, 4), np.float32)}
    longer = write_gguf(model, tmp_path / "longer.gguf", keys, arrays)
    check_same(write_gguf(model, tmp_path / "m.gguf"), longer)


def test_nemotrons_layers_that_guess_further_tokens_are_left_out(tmp_path: Path) -> None:
    """A GGUF file counts them, with heads of their own; a directory has them in a folder."""
    model = family_model("nemotron_h_latent")
    heads = {"attention.head_count_kv": [0, 0, 2, 0, 0, 0, 2]}
    sizes = {"feed_forward_length": [0, 96, 0, 96, 0, 96, 0]}
    keys = heads | sizes | {"block_count": 7, "nextn_predict_layers": 1}
    arrays = gguf_arrays(model) | {"blk.6.nextn.eh_proj.weight": np.zeros((4, 4), np.float32)}
    longer = write_gguf(model, tmp_path / "longer.gguf", keys, arrays)
    check_same(write_gguf(model, tmp_path / "m.gguf"), longer)
    more = model.tensors | {"mtp.layers.0.eh_proj.weight": np.zeros((4, 4), np.float32)}
    longer = write_model(replace(model, tensors=more), tmp_path / "longer")
    check_same(write_model(model, tmp_path / "hf"), longer)


def test_a_granite_without_states_is_loaded_too(tmp_path: Path) -> None:
    """As its smaller models are, which have the name of the others."""
    kinds = ["attention", "attention"]
    model = family_model("granitemoehybrid_dense")
    attention = {
        name.replace("layers.1.self_attn", "layers.0.self_attn"): array
        for name, array in model.tensors.items()
        if ".layers.0.mamba." not in name
    }
    arrays = attention | {n: a for n, a in model.tensors.items() if "layers.1.self_attn" in n}
    changed = CASES[model.name] | {"layer_types": kinds}
    config = program_of(write_model(replace(model, tensors=arrays), tmp_path / "m", changed))
    assert not config.has_states
    assert config.heads.rope == 0


def test_a_program_without_biases_of_convolutions(tmp_path: Path) -> None:
    config = program_of(write_case("granitemoehybrid_dense", tmp_path / "hf"))
    states = [layer.state for layer in config.layers if isinstance(layer.state, Ssd)]
    assert [state.conv_bias for state in states] == [False]


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("lfm2", "layers.0.conv.in_proj", "lora_B has shape (64, 4); the model needs (192, 4)"),
        ("lfm2", "layers.0.conv.conv", "conv.weight' is F32 [64, 4]; rows of 3 values"),
        ("qwen3_next", "layers.0.self_attn.k_proj", "is not supported; accepted for layer 0 are"),
        ("qwen3_next", "layers.0.mlp.gate", "layers.0.mlp.gate is not supported"),
        ("olmo", "visual.0.proj", "visual.0.proj is not supported; accepted for this model"),
        ("falcon_h1", "layers.0.mamba.conv1d", "mamba.conv1d is not supported; accepted for"),
    ],
)
def test_adapters_of_what_the_layer_lacks_are_refused_by_name(
    name: str, module: str, message: str, tmp_path: Path
) -> None:
    assert message in refused_adapter(name, module, 64, tmp_path)


def test_adapters_of_queries_beside_a_gate_change_both(tmp_path: Path) -> None:
    """The module's rows are two for each of a head: those of queries alone are refused."""
    module = "layers.1.self_attn.q_proj"
    assert "192 rows are needed" in refused_adapter("qwen3_next", module, 96, tmp_path / "half")
    config = program_of(write_case("qwen3_next", tmp_path / "hf"))
    files = open_adapter(zero_adapter(module, 192, tmp_path / "whole"), config)
    assert [(one.role, one.layer) for one in files.matrices] == [
        (Role.ATTN_Q, 1),
        (Role.ATTN_GATE, 1),
    ]
    files.close()


def zero_adapter(module: str, outputs: int, folder: Path) -> Path:
    """Write an adapter of one module with so many outputs."""
    key = f"base_model.model.model.{module}.lora"
    tensors = {
        f"{key}_A.weight": np.zeros((4, 64), np.float32),
        f"{key}_B.weight": np.zeros((outputs, 4), np.float32),
    }
    return write_adapter(folder, tensors, lora_config(4, 8.0))


def refused_adapter(name: str, module: str, outputs: int, tmp_path: Path) -> str:
    """What is said of an adapter of one module with so many outputs."""
    config = program_of(write_case(name, tmp_path / "hf"))
    folder = zero_adapter(module, outputs, tmp_path / "lora")
    with pytest.raises(ModelFileError) as caught:
        open_adapter(folder, config)
    return str(caught.value)


def test_lfm3_has_gates_of_heads_and_norms_of_results_where_its_config_says_so(
    tmp_path: Path,
) -> None:
    config = program_of(write_case("lfm3", tmp_path / "all"))
    kinds = [(layer.attention and layer.attention.window, layer.state) for layer in config.layers]
    assert kinds == [(None, ShortConv(7)), (8, None), (None, None), (None, ShortConv(7)), (8, None)]
    assert layer_shapes(config, 2)[Role.ATTN_GATE] == (4, 64)
    assert all(layer.result_norms for layer in config.layers)
    turning, still = config.ropes[0].factors[:6], config.ropes[0].factors[6:]
    assert (config.ropes[0].rotated, set(turning), min(still) > 1e29) == (24, {1.0}, True)
    model = family_model("lfm3")
    left_out = ("self_attn.gate_proj", "self_attn.g_proj", "post_operator_norm", "post_ffn_norm")
    plain = {n: a for n, a in model.tensors.items() if not any(part in n for part in left_out)}
    changes = {"use_attention_gate": False, "use_sandwich_norm": False}
    folder = write_model(replace(model, tensors=plain), tmp_path / "m", CASES["lfm3"] | changes)
    layers = program_of(folder).layers
    assert not any(
        layer.result_norms or (layer.attention and layer.attention.head_gate) for layer in layers
    )


def test_adapters_of_queries_beside_gates_of_heads_are_read(tmp_path: Path) -> None:
    """Whose module makes queries alone."""
    config = program_of(write_case("lfm3", tmp_path / "hf"))
    files = open_adapter(zero_adapter("layers.1.self_attn.q_proj", 96, tmp_path / "lora"), config)
    assert [(one.role, one.layer) for one in files.matrices] == [(Role.ATTN_Q, 1)]
    files.close()


def test_falcons_multipliers_are_in_its_tensors_or_scales(tmp_path: Path) -> None:
    """From config.json those that must be; a GGUF file has all of them in its tensors."""
    model, config = family_model("falcon_h1"), CASES["falcon_h1"]
    with (
        open_checkpoint(write_model(model, tmp_path / "hf")) as hf,
        open_checkpoint(write_gguf(model, tmp_path / "m.gguf")) as gguf,
    ):
        scale = 24**-0.5 * config["key_multiplier"] * config["attention_in_multiplier"] ** 2
        assert hf.config.heads.score_scale == pytest.approx(scale)
        assert (hf.config.embedding_scale, gguf.config.embedding_scale) == (
            pytest.approx(config["embedding_multiplier"]),
            1,
        )
        layers = (replace(hf.config.layers[0], attention=gguf.config.heads),) * 2
        ends = {"embedding_scale": 1.0, "logit_scale": 1.0, "row_multipliers": None}
        assert replace(hf.config, layers=layers, **ends) == gguf.config
        of_gguf = {(t.role, t.layer): t for t in gguf.tensors}
        for tensor in hf.tensors:
            if tensor.role not in (
                Role.STATE_GATE,
                Role.STATE_DECAY,
                Role.STATE_OUT,
                Role.FFN_DOWN,
            ):
                continue
            found, wanted = (
                np.frombuffer(one.data, "f4")
                for one in (tensor, of_gguf[tensor.role, tensor.layer])
            )
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", ["BF16", "F16"])
def test_multiplied_matrices_keep_their_type(kind: str, tmp_path: Path) -> None:
    """Rounded once, to nearest; vectors become float32, and codes cannot be multiplied."""
    rows = np.array([[1.0, -3.0, 2**-20, 1.9921875], [257.0, 0.5, 65.25, 0.0]], "f4")
    data = as_bytes(rows, kind)
    sources = {
        name: SourceTensor("here", shape, TensorType[kind], memoryview(data), lambda: None)
        for name, shape in (("matrix", (2, 4)), ("vector", (8,)))
    }
    tensors = Rearranged(sources)
    by = np.array([1.0, 1.00390625])
    tensors.multiply_rows("matrix", by)
    tensors.multiply_rows("vector", 1.00390625)
    tensors.multiply_rows("absent", 2.0)
    matrix, vector = tensors.out["matrix"], tensors.out["vector"]
    assert (matrix.type, vector.type) == (TensorType[kind], TensorType.F32)
    held = to_f32(memoryview(data), TensorType[kind]).astype("f8")
    expected = held.reshape(2, 4) * by[:, None]
    assert bytes(matrix.view()) == as_bytes(expected.astype("f4"), kind)
    assert bytes(vector.view()) == (held * 1.00390625).astype("f4").tobytes()
    coded = SourceTensor("there", (2, 32), TensorType.Q8_0, memoryview(b""), lambda: None)
    with pytest.raises(ModelFileError, match=r"there: tensor 'm' is Q8_0 .*; its config mult"):
        Rearranged({"m": coded}).multiply_rows("m", 2.0)


def as_bytes(values: np.ndarray, kind: str) -> bytes:
    """Rounded to nearest, ties to even."""
    if kind == "F16":
        return values.astype("f2").tobytes()
    bits = values.view("u4").astype("u8")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("u2").tobytes()
