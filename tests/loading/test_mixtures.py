"""Names of makers, layers that guess further tokens, and refusals of families with experts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_families import check_same

from family_gguf import gguf_arrays, write_gguf
from family_models import Arrays, family_model, write_case, write_model
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.families.table import gguf_family, hf_family
from published_configs import CASES


def names_of_ling(arrays: Arrays) -> Arrays:
    """The tensors as the makers of Ling 2 publish them: Q, K and V in one, names of their own."""
    found: Arrays = {}
    for name, array in arrays.items():
        if ".self_attn.q_proj." in name:
            parts = [arrays[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            name, array = name.replace("self_attn.q_proj", "attention.query_key_value"), parts
            found[name] = np.concatenate(array)
        elif ".self_attn.k_proj." not in name and ".self_attn.v_proj." not in name:
            name = name.replace("embed_tokens", "word_embeddings")
            name = name.replace("self_attn.o_proj", "attention.dense")
            name = name.replace("self_attn.q_norm", "attention.query_layernorm")
            name = name.replace("self_attn.k_norm", "attention.key_layernorm")
            found[name.replace("e_score_correction_bias", "expert_bias")] = array
    return found


def test_ling_has_names_of_its_makers(tmp_path: Path) -> None:
    model = family_model("bailing_moe")
    made = names_of_ling(model.tensors)
    assert len(made) == len(model.tensors) - 2 * 3
    own = write_model(replace(model, tensors=made), tmp_path / "own", CASES["bailing_moe"])
    check_same(write_case("bailing_moe", tmp_path / "hf"), own)


def names_of_m3(arrays: Arrays) -> Arrays:
    """The tensors as the makers of MiniMax M3 publish them: each expert's, gate and up apart."""
    found: Arrays = {}
    for name, array in arrays.items():
        name = name.replace("mlp.gate.e_score", "block_sparse_moe.e_score")
        for part in ("experts", "gate", "shared_experts"):
            name = name.replace(f".mlp.{part}.", f".block_sparse_moe.{part}.")
        name = name.replace("self_attn.indexer.", "self_attn.index_")
        if name.endswith("experts.gate_up_proj"):
            for number, both in enumerate(array):
                for part, half in zip(("w1", "w3"), np.split(both, 2), strict=True):
                    found[f"{name.removesuffix('gate_up_proj')}{number}.{part}.weight"] = half
        elif name.endswith("experts.down_proj"):
            for number, down in enumerate(array):
                found[f"{name.removesuffix('down_proj')}{number}.w2.weight"] = down
        elif "gate_up_proj" in name:
            for part, half in zip(("gate", "up"), np.split(array, 2), strict=True):
                found[name.replace("gate_up", part)] = half
        else:
            found[name] = array
    return found


@pytest.mark.parametrize("name", ["minimax_m3", "minimax_m3_odd"])
def test_minimax_m3_has_names_of_its_makers(name: str, tmp_path: Path) -> None:
    model = family_model(name)
    made = {key: np.ascontiguousarray(one) for key, one in names_of_m3(model.tensors).items()}
    config = CASES[name] | {"model_type": "minimax_m3", "architectures": ["MiniMaxM3ForCausalLM"]}
    own = write_model(replace(model, tensors=made), tmp_path / "own", config)
    check_same(write_case(name, tmp_path / "hf"), own)


def m3_index(**changes: Any) -> dict[str, Any]:
    """Changes of the config: some of its index."""
    name = "sparse_attention_config"
    return {name: CASES["minimax_m3"][name] | changes}


def test_minimax_m3_has_an_index_where_queries_do_not_see_all(tmp_path: Path) -> None:
    def index(case: str = "minimax_m3", **changes: Any) -> list[tuple[int, ...]]:
        with open_checkpoint(write_case(case, tmp_path / str(len(changes)), **changes)) as opened:
            assert opened.config.context_length == 256
            found = [one.attention for one in opened.config.layers if one.attention is not None]
            return [
                (one.index_topk, one.index_block, one.index_local, one.index_heads, one.index_dim)
                for one in found
            ]

    none, usual = (0, 0, 0, 0, 0), (64, 32, 1, 2, 24)
    sparse = CASES["minimax_m3"]["sparse_attention_config"]
    assert index() == [none, usual, usual]
    assert index(sparse_attention_config=sparse | {"sparse_topk_blocks": 8}) == [none] * 3
    nowhere = sparse | {"sparse_attention_freq": [0, 0, 0]}
    assert index(sparse_attention_config=nowhere, use_cache=True) == [none] * 3
    more = sparse | {"sparse_block_size": 64, "sparse_topk_blocks": 3, "sparse_local_block": 2}
    assert index(sparse_attention_config=more)[1:] == [(192, 64, 2, 2, 24)] * 2
    named = {"layer_types": ["full_attention", "minimax_m3_sparse", "full_attention"]}
    assert index(**named, use_cache=True, pad_token_id=0) == [none, usual, none]


def with_a_guessing_layer(arrays: Arrays, name: str) -> Arrays:
    return arrays | {name: np.zeros((4, 4), np.float32)}


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("minimax_m2", "model.layers.2.eh_proj.weight"),
        ("bailing_moe", "model.layers.3.eh_proj.weight"),
        ("mellum", "mtp.layers.0.self_attn.q_proj.weight"),
        ("step3p7", "model.layers.5.eh_proj.weight"),
    ],
)
def test_layers_that_guess_further_tokens_are_left_out(
    name: str, tensor: str, tmp_path: Path
) -> None:
    model = family_model(name)
    more = replace(model, tensors=with_a_guessing_layer(model.tensors, tensor))
    check_same(write_case(name, tmp_path / "hf"), write_model(more, tmp_path / "m", CASES[name]))


def test_the_language_model_of_a_wrapped_step(tmp_path: Path) -> None:
    """Under the names of transformers, with its tower."""
    model = family_model("step3p7")
    text = {key: value for key, value in CASES["step3p7"].items() if key != "architectures"}
    config = {"model_type": "step3p7", "text_config": text | {"model_type": "step3p5"}}
    own = write_model(model, tmp_path / "own", config | {"tie_word_embeddings": False})
    check_same(write_case("step3p7", tmp_path / "hf"), own)


def test_steps_angles_by_kind_or_by_layer(tmp_path: Path) -> None:
    changes = {"rope_theta": None, "partial_rotary_factors": None}
    scaled = {
        "rope_type": "llama3",
        "factor": 2.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 32.0,
    }
    scaled |= {"original_max_position_embeddings": 64}
    full = {"rope_theta": 5000000.0, "partial_rotary_factor": 0.5} | scaled
    kinds = {"full_attention": full, "sliding_attention": {"rope_theta": 10000.0}}
    by_kind = write_case("step3p7", tmp_path / "kinds", **changes, rope_parameters=kinds)
    check_same(write_case("step3p7", tmp_path / "layers", rope_scaling=scaled), by_kind)


def test_a_limit_of_a_gguf_file_may_be_that_of_all_layers(tmp_path: Path) -> None:
    keys = {"swiglu_clamp_exp": 0.5}
    file = write_gguf(family_model("step3p7"), tmp_path / "m.gguf", keys)
    check_same(write_case("step3p7", tmp_path / "hf", swiglu_limits=[0.5] * 5), file)


def test_lings_layers_that_guess_are_counted_in_gguf(tmp_path: Path) -> None:
    model = family_model("bailing_moe")
    keys = {"block_count": 4, "nextn_predict_layers": 1}
    arrays = with_a_guessing_layer(gguf_arrays(model), "blk.3.nextn.eh_proj.weight")
    longer = write_gguf(model, tmp_path / "longer.gguf", keys, arrays)
    check_same(write_gguf(model, tmp_path / "m.gguf"), longer)


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("minimax_m2", {"rotary_dim": 26}, "rotary_dim is 26; at most the head dimension, 24,"),
        ("minimax_m2", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; 'silu' is needed"),
        ("minimax_m3", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; 'swigluoai' or 'silu' is"),
        ("minimax_m3", {"use_gemma_norm": False}, "use_gemma_norm is False; True is needed"),
        ("minimax_m3", {"n_shared_experts": 2}, "n_shared_experts is 2; 1 is needed"),
        ("minimax_m3", {"moe_layer_freq": [0, 2, 1]}, "[0, 2, 1]; 3 values, each 0 or 1"),
        ("minimax_m3", m3_index(sparse_block_size=48), "sparse_block_size is 48; a multiple of 32"),
        ("minimax_m3", m3_index(sparse_num_index_heads=4), "is 4; a divisor of the KV heads, 2,"),
        ("minimax_m3", m3_index(sparse_local_block=3), "is 3; 1 to index_topk_blocks, 2,"),
        ("minimax_m3", m3_index(sparse_init_block=1), "sparse_init_block is 1; 0 is needed"),
        ("minimax_m3", m3_index(sparse_score_type="mean"), "is 'mean'; 'max' is needed"),
        ("minimax_m3", m3_index(sparse_attention_freq=[1, 1]), "[1, 1]; 3 values, each 0 or 1"),
        ("minimax_m3", m3_index(sparse_index_dim=8), "index_dim is 8, must be 12 to 512"),
        ("minimax_m3", {"layer_types": ["sparse"] * 3}, "3 values, each 'full_attention' or"),
        ("bailing_moe", {"use_qk_norm": None}, "use_qk_norm is None; true (models without"),
        ("bailing_moe", {"use_qkv_bias": True}, "use_qkv_bias is True; false (these biases"),
        ("bailing_moe", {"score_function": "softmax"}, "score_function is 'softmax'; 'sigmoid'"),
        ("mellum", {"mlp_layer_types": ["sparse"]}, "mlp_layer_types is ['sparse']; 4 times"),
        ("laguna", {"moe_router_logit_softcapping": 5.0}, "moe_router_logit_softcapping is 5.0;"),
        ("laguna", {"num_attention_heads_per_layer": [4, 6]}, "is [4, 6]; 5 numbers of heads"),
        ("granite_swa", {"layer_rope_theta": [1.0, -1]}, "layer_rope_theta is [1.0, -1]; 5 times"),
        ("step3p7", {"swiglu_limits": [1.0, -1.0]}, "swiglu_limits is [1.0, -1.0]; 5 values"),
        ("step3p7", {"layer_types": ["full"] * 5}, "5 times 'full_attention' or"),
        ("granite_swa", {"sliding_window": None}, "sliding_window is None; a whole number"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    name: str, changes: dict[str, Any], error: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(write_case(name, tmp_path / "hf", **changes))
    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("plamo2", "it has layers with a recurrent state"),
    ],
)
def test_families_that_need_more_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        hf_family(name, "config.json")
    with pytest.raises(ModelFileError, match=r"'plamo2' is not supported: it has layers"):
        gguf_family("plamo2", "m.gguf")
