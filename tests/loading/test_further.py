"""Wrapped language models of further families, what their fields mean, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_families import check_same

from family_gguf import gguf_arrays, write_gguf
from family_models import family_model, write_case, write_model
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint
from published_configs import CASES


def test_the_language_model_of_a_wrapped_muse(tmp_path: Path) -> None:
    """Beside its tower, with all that a config may leave out."""
    text = CASES["muse_glimmer"] | {"model_type": "muse_glimmer_text"}
    wrapper = {"model_type": "muse_glimmer", "text_config": text, "tie_word_embeddings": False}
    own = write_model(family_model("muse_glimmer"), tmp_path / "own", wrapper)
    check_same(write_case("muse_glimmer", tmp_path / "hf"), own)


def test_a_muse_that_says_little_is_like_the_published_one(tmp_path: Path) -> None:
    names = ("final_logit_softcapping", "output_multiplier", "post_norm_eps", "qk_scale_factor")
    little = {key: value for key, value in CASES["muse_glimmer"].items() if key not in names}
    model = family_model("muse_glimmer")
    given = {"final_logit_softcapping": 20.0, "output_multiplier": 0.19611613513818404}
    said = write_case("muse_glimmer", tmp_path / "said", **given)
    check_same(said, write_model(model, tmp_path / "little", little))


def test_layers_of_a_gguf_muse_turn_by_the_theta_of_windows(tmp_path: Path) -> None:
    model, changes = family_model("muse_glimmer"), {"rope.freq_base_swa": 500000.0}
    other = write_gguf(model, tmp_path / "other.gguf", changes | {"rope.freq_base": 1e6})
    check_same(write_gguf(model, tmp_path / "m.gguf"), other)


def test_mimo_in_the_words_of_its_makers_and_of_transformers(tmp_path: Path) -> None:
    """The published config against the one that transformers writes; and what it leaves out."""
    words = ("hybrid_layer_pattern", "moe_layer_freq", "layernorm_epsilon", "sliding_window_size")
    model = family_model("mimo_v2_flash")
    own = {key: value for key, value in model.config.items() if key not in words}
    check_same(
        write_case("mimo_v2_flash", tmp_path / "hf"), write_model(model, tmp_path / "own", own)
    )
    little = {key: own[key] for key in own if key not in ("mlp_layer_types", "rope_parameters")}
    check_same(tmp_path / "own", write_model(model, tmp_path / "little", little))


def test_mimos_guessing_layers_and_sinks_by_another_name(tmp_path: Path) -> None:
    model = family_model("mimo_v2_flash")
    named = {
        name.replace("attention_sink_bias", "sinks"): array for name, array in model.tensors.items()
    }
    more = named | {"model.mtp.layers.0.eh_proj.weight": np.zeros((4, 4), np.float32)}
    other = write_model(replace(model, tensors=more), tmp_path / "m", CASES["mimo_v2_flash"])
    check_same(write_case("mimo_v2_flash", tmp_path / "hf"), other)


def test_fused_heads_of_mimos_gguf(tmp_path: Path) -> None:
    """Values have fewer rows than keys."""
    model = family_model("mimo_v2_flash")
    arrays = gguf_arrays(model)
    for number in range(model.config["num_hidden_layers"]):
        parts = [arrays.pop(f"blk.{number}.attn_{part}.weight") for part in "qkv"]
        arrays[f"blk.{number}.attn_qkv.weight"] = np.concatenate(parts)
    fused = write_gguf(model, tmp_path / "fused.gguf", tensors=arrays)
    check_same(write_gguf(model, tmp_path / "m.gguf"), fused)


def test_the_language_model_of_a_wrapped_llama_4(tmp_path: Path) -> None:
    model = family_model("llama4")
    named = {f"language_model.{name}": array for name, array in model.tensors.items()}
    named["vision_model.class_embedding"] = np.zeros(4, np.float32)
    wrapper = {"model_type": "llama4", "text_config": CASES["llama4"], "tie_word_embeddings": False}
    own = write_model(replace(model, tensors=named), tmp_path / "own", wrapper)
    check_same(write_case("llama4", tmp_path / "hf"), own)


def test_llama_4_says_layers_one_by_one_or_by_a_period(tmp_path: Path) -> None:
    ways = {
        "no_rope_layers": [1, 1, 1, 0],
        "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
        "moe_layers": [1, 3],
        "attn_temperature_tuning": True,
    }
    named = write_case("llama4", tmp_path / "named", **ways)
    check_same(write_case("llama4", tmp_path / "hf"), named)
    with open_checkpoint(named) as checkpoint:
        found = [layer.attention for layer in checkpoint.config.layers]
    assert [(one.chunk, one.rope, one.qk_norm) for one in found if one] == [
        *[(8192, 0, "turned")] * 3,
        (0, None, "none"),
    ]


def test_a_llama_4_without_chunks_is_a_gguf_file_that_says_so(tmp_path: Path) -> None:
    model = family_model("llama4")
    plain = {"attention_chunk_size": None, "no_rope_layers": [1] * 4, "layer_types": None}
    given = write_gguf(model, tmp_path / "m.gguf", {"attention.sliding_window": 0})
    check_same(write_case("llama4", tmp_path / "hf", **plain), given)


def test_layers_of_a_gguf_gemma_3n_share_keys_from_the_twentieth_on(tmp_path: Path) -> None:
    model, n = family_model("gemma3n"), 11
    more = {
        name.replace(f".layers.{number}.", f".layers.{number + n}."): array
        for name, array in model.tensors.items()
        for number in range(n)
        if f".layers.{number}." in name
    }
    kinds = [f"{'full' if number % 5 == 4 else 'sliding'}_attention" for number in range(2 * n)]
    projection = "model.per_layer_model_projection.weight"
    table = "model.embed_tokens_per_layer.weight"
    wider = {projection: np.tile(model.tensors[projection], (2, 1))}
    wider[table] = np.tile(model.tensors[table], (1, 2))
    changes = {"num_hidden_layers": 2 * n, "num_kv_shared_layers": 2, "layer_types": kinds}
    changes |= {"activation_sparsity_pattern": None, "intermediate_size": 192}
    longer = replace(model, config=model.config | changes, tensors=model.tensors | more | wider)
    own = write_model(longer, tmp_path / "own")
    check_same(own, write_gguf(longer, tmp_path / "m.gguf"))
    with open_checkpoint(own) as checkpoint:
        shared = [layer.attention.kv_layer for layer in checkpoint.config.layers if layer.attention]
    assert shared[19:] == [None, 18, 18]


def test_the_language_model_of_a_wrapped_gemma_3n(tmp_path: Path) -> None:
    """Keys of layers that share them may be in the file."""
    model = family_model("gemma3n_odd")
    named = {
        name.replace("model.", "model.language_model."): a for name, a in model.tensors.items()
    }
    named["model.audio_tower.x"] = named["model.embed_vision.y"] = np.zeros(4, np.float32)
    unused = np.zeros((20, 96), np.float32)
    named["model.language_model.layers.3.self_attn.k_proj.weight"] = unused
    text = CASES["gemma3n_odd"]
    wrapper = {"model_type": "gemma3n", "text_config": text, "tie_word_embeddings": False}
    own = write_model(replace(model, tensors=named), tmp_path / "own", wrapper)
    check_same(write_case("gemma3n_odd", tmp_path / "hf"), own)


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("gemma3n_odd", {"altup_active_idx": 1}, "altup_active_idx is 1; 0"),
        (
            "gemma3n_odd",
            {"activation_sparsity_pattern": [1.0] * 4},
            "4 times 0, or a number between",
        ),
        ("gemma3n_odd", {"num_kv_shared_layers": 4}, "num_kv_shared_layers is 4; a number below"),
        ("mimo_v2_flash", {"swa_v_head_dim": 8}, "swa_v_head_dim is 8; 16, as v_head_dim"),
        (
            "mimo_v2_flash",
            {"v_head_dim": 32, "swa_v_head_dim": 32},
            "value_dim is 32, must be 0 to 24",
        ),
        ("mimo_v2_flash", {"n_shared_experts": 1}, "n_shared_experts is 1; None or 0"),
        ("mimo_v2_flash", {"moe_layer_freq": [0, 1]}, "moe_layer_freq is [0, 1]; 0 or 1 for each"),
        ("llama4", {"attention_chunk_size": 33}, "attention_chunk_size is 33; a multiple of 32"),
        ("llama4", {"no_rope_layers": [2] * 4}, "no_rope_layers is [2, 2, 2, 2]; 4 times 0 or 1"),
        ("llama4", {"moe_layers": ["1"]}, "moe_layers is ['1']; a list of layers"),
        (
            "muse_glimmer",
            {"layer_rope_theta": [1e4, 0] * 3},
            "6 times 0 or 500000.0, the rope_theta",
        ),
        ("muse_glimmer", {"layer_rope_theta": [0]}, "layer_rope_theta is [0]; 6 times"),
        ("muse_glimmer", {"hidden_activation": "tanh"}, "hidden_activation is 'tanh'"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    name: str, changes: dict[str, Any], error: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(write_case(name, tmp_path / "hf", **changes))
    assert error in str(caught.value)
