"""What files say of latent attention: what is taken apart, left out, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from family_gguf import write_gguf
from family_models import Arrays, family_model, write_case, write_model
from lanewise.loading.adapters.lora import open_adapter
from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.program import Attention, Experts, ModelConfig
from lanewise.loading.checkpoints.opening import open_checkpoint
from lora_files import lora_config, write_adapter
from published_configs import CASES
from raw_safetensors import write_raw
from scaled_by_others import fp8, of_blocks
from unsplit_latent import OLD, Kind, keys_and_values, of_rank, unsplit, write_blocks


def program_of(path: Path) -> ModelConfig:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.config


def attention_of(path: Path) -> Attention:
    found = program_of(path).layers[0].attention
    assert found is not None
    return found


def bytes_of(path: Path) -> dict[tuple[Role, int], bytes]:
    with open_checkpoint(path) as checkpoint:
        return {(one.role, one.layer): bytes(one.data) for one in checkpoint.tensors}


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
def test_first_gguf_files_have_keys_and_values_in_one(name: str, tmp_path: Path) -> None:
    model = family_model(name)
    new = write_gguf(model, tmp_path / "new.gguf")
    old = write_gguf(model, tmp_path / "old.gguf", OLD, unsplit(model))
    assert program_of(old) == program_of(new)
    assert bytes_of(old) == bytes_of(new)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1", "IQ4_NL", "Q2_K", "Q4_K", "Q6_K"])
def test_blocks_of_keys_in_one_with_values_are_turned_around(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys become Q8_0, values keep their blocks; layers of floats are as ever."""
    model = of_rank("deepseek_v2", 256)
    path, weights = write_blocks(model, tmp_path / "old.gguf", {1: Kind[kind], 2: Kind[kind]})
    new = write_gguf(model, tmp_path / "new.gguf")
    caplog.set_level("INFO")
    found, plain = bytes_of(path), bytes_of(new)
    assert "keys of 2 layers are converted to Q8_0" in caplog.text
    assert program_of(path) == program_of(new)
    for layer in (1, 2):
        keys, values = keys_and_values(model, weights[layer])
        turned = np.ascontiguousarray(keys.swapaxes(1, 2)).reshape(-1, keys.shape[1])
        expected = gguf.quantize(turned, Kind.Q8_0).tobytes()
        assert found.pop((Role.LATENT_KEYS, layer)) == expected
        rows = np.frombuffer(found.pop((Role.LATENT_VALUES, layer)), np.uint8)
        read = gguf.dequantize(rows.reshape(values.shape[0] * values.shape[1], -1), Kind[kind])
        assert np.array_equal(read.reshape(values.shape), values)
    assert found.items() <= plain.items()


def test_blocks_that_are_not_read_here_are_refused(tmp_path: Path) -> None:
    model = of_rank("deepseek_v2", 256)
    path, _ = write_blocks(model, tmp_path / "old.gguf", {1: Kind.IQ2_XS})
    with pytest.raises(
        ModelFileError, match=r"1\.attn_k_b\.weight' is IQ2_XS .* rows become columns"
    ):
        open_checkpoint(path)


def test_layers_that_guess_further_tokens_are_left_out(tmp_path: Path) -> None:
    """Of files with one more layer than their config counts."""
    folder = write_case("deepseek_v3", tmp_path / "hf")
    expected = bytes_of(folder)
    arrays = load_file(folder / "model.safetensors")
    last = {n: a for n, a in arrays.items() if n.startswith("model.layers.2.")}
    further = {name.replace("layers.2.", "layers.3."): array for name, array in last.items()}
    further["model.layers.3.eh_proj.weight"] = np.zeros((64, 128), np.float32)
    save_file(arrays | further, folder / "model.safetensors", metadata={"format": "pt"})
    assert bytes_of(folder) == expected


def test_kimi_k2_is_deepseek_v3(tmp_path: Path) -> None:
    one = program_of(write_case("deepseek_v3", tmp_path / "v3"))
    assert program_of(write_case("deepseek_v3", tmp_path / "kimi", model_type="kimi_k2")) == one


def test_yarn_scales_scores_by_all_dimensions(tmp_path: Path) -> None:
    """By 0.1 mscale_all_dim ln(factor) + 1 twice; cosines and sines by their ratio, here 1."""
    plain = attention_of(write_case("deepseek_v2", tmp_path / "plain", rope_scaling=None))
    folder = write_case("deepseek_v2", tmp_path / "yarn")
    scale = (0.1 * 0.707 * np.log(4) + 1) ** 2
    assert attention_of(folder).score_scale == pytest.approx(plain.score_scale * scale, rel=1e-6)
    assert program_of(folder).ropes[0].scale == 1.0


def test_groups_of_deepseek_v2_are_ranked_by_their_best(tmp_path: Path) -> None:
    experts = {
        name: program_of(write_case(name, tmp_path / name)).layers[1].ffn
        for name in ("deepseek_v2", "deepseek_v2_groups", "deepseek_v3")
    }
    found = {
        name: (one.groups, one.groups_by_best)
        for name, one in experts.items()
        if isinstance(one, Experts)
    }
    assert found == {
        "deepseek_v2": (1, False),
        "deepseek_v2_groups": (4, True),
        "deepseek_v3": (4, False),
    }


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("deepseek_v3", {"attention_bias": True}, "attention_bias"),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func"),
        ("deepseek_v3", {"topk_method": "greedy"}, "topk_method"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("deepseek_v2", {"scoring_func": "sigmoid"}, "scoring_func"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method"),
        ("deepseek_v2", {"kv_lora_rank": 40}, "latent_rank is 40, must be a multiple of 32"),
        ("deepseek_v2", {"v_head_dim": 24}, "value_dim is 24, must be 32 to 1024"),
        ("glm4_moe_lite", {"mlp_layer_types": ["sparse", "dense", "sparse"]}, "mlp_layer_types"),
        ("deepseek_v32", {"layer_types": ["full_attention"] * 3}, "layer_types is .*indexed"),
        ("deepseek_v32", {"index_topk": 0}, "index_topk is 0"),
        ("deepseek_v32", {"index_head_dim": 8}, "index_dim is 8, must be 16 to 512"),
        ("glm_moe_dsa", {"indexer_rope_interleave": False}, "indexer_rope_interleave"),
        ("glm_moe_dsa", {"indexer_types": ["shared", "full", "full", "full"]}, "indexer_types"),
        ("glm_moe_dsa", {"indexer_types": ["full"] * 3}, "indexer_types is .* 4 times"),
        ("glm_moe_dsa", {"indexer_types": ["full", "half", "full", "full"]}, "indexer_types"),
    ],
)
def test_what_is_not_computed_is_refused(
    name: str, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=says):
        open_checkpoint(write_case(name, tmp_path / "hf", **changes))


def own_indexes(path: Path) -> list[bool]:
    attentions = [layer.attention for layer in program_of(path).layers]
    assert {one.index_topk for one in attentions if one is not None} == {11}
    return [one is not None and one.index_heads > 0 for one in attentions]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [True] * 4),
        ({"indexer_types": ["full", "shared", "full", "shared"]}, [True, False, True, False]),
        ({"index_topk_freq": 2}, [True, True, False, True]),  # every second one from the second on
        ({"index_topk_freq": 2, "index_skip_topk_offset": 1}, [True, False, True, False]),
        ({"index_topk_pattern": "FSSF", "index_topk_freq": 1}, [True, False, False, True]),
        ({"index_topk_pattern": ["full", "shared", "full", "full"]}, [True, False, True, True]),
    ],
)
def test_layers_share_indexes_as_a_config_says(
    changes: dict[str, Any], expected: list[bool], tmp_path: Path
) -> None:
    assert own_indexes(write_case("glm_moe_dsa_5", tmp_path / "hf", **changes)) == expected


def test_first_files_of_glm_5_2_do_not_say_which_layers_share_indexes(tmp_path: Path) -> None:
    """Its context tells it: in models of a shorter one every layer has an index."""
    model, silent = family_model("glm_moe_dsa_5"), {"attention.indexer.types": None}
    path = write_gguf(model, tmp_path / "short.gguf", silent)
    assert own_indexes(path) == [True] * 4
    path = write_gguf(model, tmp_path / "long.gguf", silent | {"context_length": 1 << 20})
    assert own_indexes(path) == [True, True, True, False]


def test_an_index_that_no_layer_uses_is_left_out(tmp_path: Path) -> None:
    plain = write_case("glm_moe_dsa", tmp_path / "plain")
    model, prefix = family_model("glm_moe_dsa"), "model.layers.{}.self_attn.indexer."
    more = {
        name.replace(prefix.format(1), prefix.format(2)): array
        for name, array in model.tensors.items()
        if name.startswith(prefix.format(1))
    }
    assert more
    whole = replace(model, tensors=model.tensors | more)
    folder = write_model(whole, tmp_path / "more", CASES["glm_moe_dsa"])
    assert bytes_of(folder) == bytes_of(plain)


def test_sparse_layers_have_two_names(tmp_path: Path) -> None:
    one = program_of(write_case("deepseek_v32", tmp_path / "plain"))
    for kind in ("indexed_attention", "deepseek_sparse_attention"):
        folder = write_case("deepseek_v32", tmp_path / kind, layer_types=[kind] * 3)
        assert program_of(folder) == one


def test_a_matrix_of_other_heads_is_named(tmp_path: Path) -> None:
    model = family_model("youtu")
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    tensors = model.tensors | {name: model.tensors[name][:-32]}
    folder = write_model(replace(model, tensors=tensors), tmp_path / "hf", CASES["youtu"])
    with pytest.raises(ModelFileError, match=r"kv_b_proj\.weight' is F32 \[224, 64\]; 256 rows"):
        open_checkpoint(folder)


def test_adapters_of_queries_are_refused(tmp_path: Path) -> None:
    prefix = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    shapes = {"A": (2, 64), "B": (4 * 48, 2)}
    tensors = {f"{prefix}{part}.weight": np.ones(s, np.float32) for part, s in shapes.items()}
    adapter = write_adapter(tmp_path / "adapter", tensors, lora_config(2, 4))
    config = program_of(write_case("deepseek_v2", tmp_path / "hf"))
    with pytest.raises(
        ModelFileError,
        match=r"q_proj is not supported; accepted for layer 0 are .* self_attn\.o_proj",
    ):
        open_adapter(adapter, config)


def test_published_deepseek_v3_is_fp8_in_blocks(tmp_path: Path) -> None:
    """Codes become floats before keys are turned around and rows that turn are put in halves."""
    model, convert = family_model("deepseek_v3"), fp8(of_blocks)
    quantized: dict[str, tuple[str, Any]] = {}
    plain: Arrays = {}
    for name, values in model.tensors.items():
        plain[name], quantized[name] = values, ("F32", values)
        if name.endswith("proj.weight") or "kv_a_proj" in name:
            made, plain[name] = convert(name, values / 200)
            stem = name.removesuffix(".weight")
            del quantized[name]
            quantized |= {stem + end: one for end, one in made.items() if "input" not in end}
    settings = {"quant_method": "fp8", "weight_block_size": [48, 80]}
    config = CASES["deepseek_v3"] | {"quantization_config": settings}
    folder = write_model(model, tmp_path / "fp8", config)
    write_raw(folder / "model.safetensors", quantized)
    plain = {name: values.astype(np.float32) for name, values in plain.items()}
    other = write_model(replace(model, tensors=plain), tmp_path / "hf", CASES["deepseek_v3"])
    assert program_of(folder) == program_of(other)
    assert bytes_of(folder) == bytes_of(other)
