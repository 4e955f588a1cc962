"""Kimi Linear and Ling 3: what their files say in several ways, and what is refused of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_families import check_same

from family_gguf import gguf_arrays, stacked, write_gguf
from family_models import Arrays, FamilyModel, family_model, write_case, write_model
from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.recurrences import ChannelDelta
from lanewise.loading.checkpoints.opening import open_checkpoint
from published_configs import CASES

LINEAR = CASES["kimi_linear"]["linear_attn_config"]
# Fields of Kimi K3's text_config that Kimi Linear does not have.
K3 = {
    "attn_res_block_size": 12,
    "latent_moe_use_norm": True,
    "mla_use_output_gate": True,
    "routed_expert_hidden_size": 3584,
}


def program_of(path: Path) -> ModelConfig:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.config


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        *(("kimi_linear", {key: value}, f"{key} is {value}; null (") for key, value in K3.items()),
        ("kimi_linear", K3, "(also: routed_expert_hidden_size, latent_moe_use_norm,"),
        ("kimi_linear", K3 | {"hidden_act": "situ"}, "hidden_act is 'situ'; 'silu' (other"),
        (
            "kimi_linear",
            {"linear_attn_config": LINEAR | {"gate_lower_bound": -5.0}},
            "linear_attn_config: gate_lower_bound is -5.0; null (a bound of decays",
        ),
        (
            "kimi_linear",
            {"linear_attn_config": LINEAR | {"use_full_rank_gate": True}},
            "use_full_rank_gate is True; null (a gate of full rank",
        ),
        ("kimi_linear", {"mla_use_nope": False}, "mla_use_nope is False; True"),
        ("kimi_linear", {"moe_router_activation_func": "softmax"}, "'softmax'; 'sigmoid'"),
        ("kimi_linear", {"attention_bias": True}, "attention_bias is True; False"),
        ("kimi_linear", {"linear_attn_config": 3}, "linear_attn_config is 3; an object"),
        (
            "kimi_linear",
            {"linear_attn_config": LINEAR | {"kda_layers": [1, 2]}},
            "kda_layers is [1, 2]; with full_attn_layers, each number from 1 to 5 once, is needed",
        ),
        (
            "kimi_linear",
            {"linear_attn_config": LINEAR | {"full_attn_layers": "3"}},
            "full_attn_layers is '3'; a list of layers' numbers",
        ),
        (
            "kimi_linear",
            {"linear_attn_config": LINEAR | {"head_dim": 24}},
            "layer 0 state: value_dim is 24, must be a multiple of 16",
        ),
        ("bailing_hybrid", {"group_norm_size": 8}, "group_norm_size is 8; null (lightning"),
        ("bailing_hybrid", {"linear_silu": False}, "linear_silu is False; null (lightning"),
        ("bailing_hybrid", {"score_function": "softmax"}, "score_function is 'softmax'"),
        ("bailing_hybrid", {"use_qkv_bias": True}, "use_qkv_bias is True; false"),
        ("bailing_hybrid", {"kda_lower_bound": 5}, "kda_lower_bound is 5; a number from -80"),
        ("bailing_hybrid", {"layer_types": ["full_attention"]}, "4 times 'linear_attention' or"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    name: str, changes: dict[str, Any], error: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(write_case(name, tmp_path / "hf", **changes))
    assert error in str(caught.value)


def test_kimi_k3_is_refused_by_the_names_of_its_fields(tmp_path: Path) -> None:
    """As it is published: the language model of a wrapper."""
    states = LINEAR | {"gate_lower_bound": -5.0, "use_full_rank_gate": True}
    text = CASES["kimi_linear"] | K3 | {"hidden_act": "situ", "linear_attn_config": states}
    folder = write_case("kimi_linear", tmp_path / "hf")
    (folder / "config.json").write_text(json.dumps({"model_type": "kimi_k3", "text_config": text}))
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(folder)
    assert "text_config: hidden_act is 'situ'" in str(caught.value)
    assert all(key in str(caught.value) for key in K3)
    assert "linear_attn_config.gate_lower_bound, linear_attn_config.use_full" in str(caught.value)


def test_layers_by_their_kinds_or_by_lists_of_numbers(tmp_path: Path) -> None:
    """And the words of transformers, which writes all of it, or nothing that can be left out."""
    model = family_model("kimi_linear")
    own = {key: value for key, value in model.config.items() if key != "linear_attn_config"}
    hf = write_case("kimi_linear", tmp_path / "hf")
    check_same(hf, write_model(model, tmp_path / "own", own))
    program = program_of(hf)
    attends = [layer.attention is not None for layer in program.layers]
    assert attends == [False, False, True, False, True]
    assert program.heads.rope is None


def test_without_lists_every_fourth_layer_but_the_first_attends(tmp_path: Path) -> None:
    """As transformers has it: number 4 of five, from 0, here the tensors of the last layer."""
    lists = {key: LINEAR[key] for key in LINEAR if not key.endswith("_layers")}
    config = CASES["kimi_linear"] | {"linear_attn_config": lists}
    model = family_model("kimi_linear")
    tensors = {
        name.replace("layers.2.", "layers.9."): array for name, array in model.tensors.items()
    }
    own = {
        name.replace("layers.1.", "layers.2."): array
        for name, array in model.tensors.items()
        if ".layers.1." in name
    }
    kept = {name: array for name, array in tensors.items() if ".layers.9." not in name}
    other = write_model(replace(model, tensors=kept | own), tmp_path / "m", config)
    attends = [layer.attention is not None for layer in program_of(other).layers]
    assert attends == [False] * 4 + [True]


def as_transformers_runs_it(model: FamilyModel) -> Arrays:
    """Names and fused tensors that its classes have, which another writer may keep."""
    found: Arrays = {}
    for name, array in stacked(model.tensors).items():
        before, _, last = name.rpartition(".self_attn.")
        if last.startswith(("f_a_proj", "f_b_proj", "dt_bias", "A_log")):
            name = f"{before}.self_attn.forget_gate.{last}"
        name = name.replace(".block_sparse_moe.", ".mlp.")
        found[name] = array
    for name in [name for name in found if name.endswith("q_conv1d.weight")]:
        parts = [found.pop(name.replace("q_conv1d", f"{part}_conv1d")) for part in "qkv"]
        found[name.replace("q_conv1d", "conv1d")] = np.concatenate(parts)
    for name in [name for name in found if name.endswith("experts.w1.weight")]:
        gate, up, down = (found.pop(name.replace("w1", part)) for part in ("w1", "w3", "w2"))
        folder = name.removesuffix("w1.weight")
        found[f"{folder}gate_up_proj"] = np.concatenate([gate, up], axis=1)
        found[f"{folder}down_proj"] = down
    return found


def test_tensors_as_transformers_has_them_while_a_model_runs(tmp_path: Path) -> None:
    model = family_model("kimi_linear")
    other = replace(model, tensors=as_transformers_runs_it(model))
    check_same(write_model(model, tmp_path / "m"), write_model(other, tmp_path / "other"))


def test_layers_that_guess_further_tokens_are_left_out(tmp_path: Path) -> None:
    for name, number in (("kimi_linear", 5), ("bailing_hybrid", 4)):
        model = family_model(name)
        more = {f"model.layers.{number}.eh_proj.weight": np.zeros((4, 4), np.float32)}
        longer = replace(model, tensors=model.tensors | more)
        check_same(
            write_model(model, tmp_path / name), write_model(longer, tmp_path / f"{name}-longer")
        )


def test_fused_inputs_of_gguf(tmp_path: Path) -> None:
    """Those of states; latent attention has none."""
    model = family_model("kimi_linear")
    arrays = gguf_arrays(model)
    for name in [name for name in arrays if name.endswith("attn_k.weight")]:
        parts = [arrays.pop(name.replace("attn_k", f"attn_{part}")) for part in "qkv"]
        arrays[name.replace("attn_k", "attn_qkv")] = np.concatenate(parts)
    fused = write_gguf(model, tmp_path / "fused.gguf", tensors=arrays)
    check_same(write_gguf(model, tmp_path / "m.gguf"), fused)


def test_ling_without_a_bound_of_decays(tmp_path: Path) -> None:
    bounded = program_of(write_case("bailing_hybrid", tmp_path / "bounded"))
    other = program_of(write_case("bailing_hybrid", tmp_path / "free", kda_safe_gate=False))
    floors = []
    for config in (bounded, other):
        state = config.layers[0].state
        assert isinstance(state, ChannelDelta)
        floors.append((state.decay_floor, state.decay_rank, state.gate_rank))
    assert floors == [(5.0, 0, 0), (0.0, 0, 0)]
    assert bounded.heads.head_gate


def test_roles_of_states_are_in_both_kinds_of_file(tmp_path: Path) -> None:
    for name in ("kimi_linear", "bailing_hybrid"):
        with open_checkpoint(
            write_gguf(family_model(name), tmp_path / f"{name}.gguf")
        ) as checkpoint:
            roles = {tensor.role for tensor in checkpoint.tensors}
        assert {Role.STATE_KEYS, Role.STATE_VALUES, Role.STATE_IN} <= roles
        assert (Role.STATE_DECAY_DOWN in roles) == (name == "kimi_linear")
