"""DeepSeek V4's files: names of three kinds, scales that are powers of two, fields."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from family_gguf import write_gguf
from family_models import family_model, write_case, write_model
from lanewise.loading.adapters.lora import open_adapter
from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise_quantizer.fit.source import Source
from lora_files import lora_config, write_adapter
from published_configs import CASES
from raw_safetensors import write_raw
from scaled_by_others import value_of
from tests.loading.test_families import check_same

pytestmark = pytest.mark.native

NAME = "deepseek_v4"
HEAVY = "heavily_compressed_attention"
LATER = ("model.layers.3.", "model.layers.4.")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
# From the names that transformers writes to the published ones, and to those of its modules.
PUBLISHED = (
    *((r"^model\.layers\.", "layers."), (r"^model\.embed_tokens", "embed")),
    *((r"^model\.norm", "norm"), (r"^model\.hc_head\.hc_", "hc_head_")),
    (r"\.attn\.norm\.", ".attn.kv_norm."),
)
MODULES = (
    (r"^head\.", "lm_head."),
    *((r"\.attn\.norm\.", ".self_attn.kv_norm."), (r"\.attn\.", ".self_attn.")),
    *((r"\.ffn\.", ".mlp."), (r"\.indexer\.compressor\.", ".compressor.indexer.")),
    (r"\.indexer\.weights_proj\.", ".compressor.indexer.scorer.weights_proj."),
    (r"\.self_attn\.indexer\.wq_b\.", ".self_attn.compressor.indexer.q_b_proj."),
    *((r"compressor\.norm", "compressor.kv_norm"), (r"indexer\.norm", "indexer.kv_norm")),
    *((r"\.ape$", ".position_bias"), (r"\.attn_sink$", ".sinks"), (r"\.wq_a\.", ".q_a_proj.")),
    *((r"\.wq_b\.", ".q_b_proj."), (r"\.wkv\.", ".kv_proj."), (r"\.wgate\.", ".gate_proj.")),
    *((r"\.wo_a\.", ".o_a_proj."), (r"\.wo_b\.", ".o_b_proj."), (r"\.q_norm\.", ".q_a_norm.")),
    *((r"\.attn_norm\.", ".input_layernorm."), (r"\.ffn_norm\.", ".post_attention_layernorm.")),
    *((r"\.hc_attn_", ".attn_hc."), (r"\.hc_ffn_", ".ffn_hc.")),
    (r"gate\.bias$", "gate.e_score_correction_bias"),
    *((r"\.w1\.", ".gate_proj."), (r"\.w2\.", ".down_proj."), (r"\.w3\.", ".up_proj.")),
)


def renamed(names: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    found = {}
    for name, array in family_model(NAME).tensors.items():
        for pattern, to in names:
            name = re.sub(pattern, to, name)
        found[name] = array
    return found


@pytest.mark.parametrize("names", [PUBLISHED, MODULES])
def test_names_of_all_kinds_are_one_model(names: Any, tmp_path: Path) -> None:
    """And what guesses further tokens is left out."""
    model = family_model(NAME)
    tensors = renamed(names) | {"mtp.0.e_proj.weight": np.zeros((64, 64), np.float32)}
    other = write_model(replace(model, tensors=tensors), tmp_path / "other")
    check_same(write_model(model, tmp_path / "own"), other)


def test_experts_may_be_in_one_tensor(tmp_path: Path) -> None:
    model, tensors = family_model(NAME), renamed(MODULES)
    for layer in range(5):
        folder = f"model.layers.{layer}.mlp.experts"
        parts = {
            part: np.stack([tensors.pop(f"{folder}.{n}.{part}.weight") for n in range(8)])
            for part in ("gate_proj", "up_proj", "down_proj")
        }
        both = np.concatenate([parts["gate_proj"], parts["up_proj"]], axis=1)
        tensors |= {f"{folder}.gate_up_proj": both, f"{folder}.down_proj": parts["down_proj"]}
    other = write_model(replace(model, tensors=tensors), tmp_path / "other")
    check_same(write_model(model, tmp_path / "own"), other)


@pytest.mark.parametrize("kind", ["F8_E8M0", "F32"])
def test_published_codes_and_scales(kind: str, tmp_path: Path) -> None:
    """FP8 in blocks, experts of four bits, both with scales that are powers of two."""
    folder, rng = write_model(family_model(NAME), tmp_path / "m"), np.random.default_rng(5)
    tensors: dict[str, tuple[str, Any]] = {}
    expected: dict[str, Any] = {}
    fp8 = np.array([value_of(code, 4) for code in range(256)], np.float32)
    for name, array in renamed(PUBLISHED).items():
        tensors[name] = ("I64" if array.dtype == np.int64 else "F32", array)
        layer = name.removesuffix(".weight")
        if ".experts." in name and kind == "F8_E8M0":
            codes = rng.integers(0, 16, array.shape).astype(np.uint8)
            exponents = rng.integers(120, 130, (array.shape[0], array.shape[1] // 32))
            tensors[name] = ("I8", codes[:, ::2] | codes[:, 1::2] << 4)
            tensors[f"{layer}.scale"] = (kind, exponents.astype(np.uint8))
            expected[name] = E2M1[codes] * np.ldexp(np.float32(1), exponents - 127).repeat(32, 1)
        elif re.search(r"\.w[qok][_v]?[ab]?v?\.weight$", name) and "compressor" not in name:
            codes = rng.integers(0, 127, array.shape).astype(np.uint8)
            blocks = [-(-size // by) for size, by in zip(array.shape, (16, 32), strict=True)]
            exponents = rng.integers(120, 130, blocks)
            scales = np.ldexp(np.float32(1), exponents - 127)
            tensors[name] = ("F8_E4M3", codes)
            stored = exponents.astype(np.uint8) if kind == "F8_E8M0" else scales
            tensors[f"{layer}.scale"] = (kind, stored)
            whole = scales.repeat(16, 0)[: array.shape[0]].repeat(32, 1)[:, : array.shape[1]]
            expected[name] = fp8[codes] * whole
    write_raw(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text())
    settings = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 32]}
    config |= {"quantization_config": settings, "expert_dtype": "fp4"}
    (folder / "config.json").write_text(json.dumps(config))
    roles = {"wq_a": Role.LATENT_QUERY, "wq_b": Role.ATTN_Q, "wkv": Role.ATTN_K}
    roles |= {"wo_a": Role.ATTN_GROUPS, "wo_b": Role.ATTN_OUTPUT}
    with open_checkpoint(folder) as checkpoint:
        source = Source(checkpoint)
        for layer in range(5):
            for name, role in roles.items():
                wanted = expected[f"layers.{layer}.attn.{name}.weight"]
                assert np.array_equal(source(role, layer), wanted), (name, layer)
        types = {tensor.role: tensor.type for tensor in checkpoint.tensors}
        four = types[Role.EXPERTS_GATE] == TensorType.MXFP4
        assert four == (kind == "F8_E8M0")
        if four:
            each = [expected[f"layers.3.ffn.experts.{n}.w2.weight"] for n in range(8)]
            assert np.array_equal(source(Role.EXPERTS_DOWN, 3), np.concatenate(each))


def test_scales_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = write_model(family_model(NAME), tmp_path / "m")
    tensors: dict[str, tuple[str, Any]] = {
        name: ("I64" if array.dtype == np.int64 else "F32", array)
        for name, array in family_model(NAME).tensors.items()
    }
    name = "model.layers.0.ffn.experts.0.w1"
    tensors[f"{name}.weight"] = ("I8", np.zeros((32, 32), np.uint8))
    tensors[f"{name}.scale"] = ("F8_E8M0", np.zeros((32, 1), np.uint8))
    write_raw(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ModelFileError, match=r"\[32, 32\] beside scales \[32, 1\]; needed: a scale"
    ):
        open_checkpoint(folder)


def test_older_names_of_fields_mean_the_same(tmp_path: Path) -> None:
    own = write_case(NAME, tmp_path / "own")
    case = dict(CASES[NAME])
    rates, kinds = case.pop("compress_rates"), case.pop("layer_types")
    case |= {"compress_rate_csa": rates["compressed_sparse_attention"]}
    case |= {"compress_rate_hca": rates["heavily_compressed_attention"]}
    case["compress_ratios"] = [
        {"sliding_attention": 0, "compressed_sparse_attention": 4}.get(kind, 128) for kind in kinds
    ] + [0]
    case["mlp_layer_types"] = ["hash_moe"] * case.pop("num_hash_layers") + ["moe"] * 3
    case["partial_rotary_factor"] = case.pop("qk_rope_head_dim") / case["head_dim"]
    check_same(own, write_model(family_model(NAME), tmp_path / "other", case))


def test_layers_without_a_list_are_those_of_v4_pro(tmp_path: Path) -> None:
    """The last layer sees the finer entries; its tensors are missing here."""
    changes = {"layer_types": None, "num_hidden_layers": 4}
    with pytest.raises(ModelFileError, match=r"layers\.[01]\.self_attn\.compressor\.kv_proj"):
        open_checkpoint(write_case(NAME, tmp_path / "m", **changes))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2; 1 is needed"),
        ({"n_shared_experts": 2}, "n_shared_experts is 2; 1 is needed"),
        ({"mlp_bias": True}, "mlp_bias is True; False is needed"),
        ({"norm_topk_prob": False}, "norm_topk_prob is False; True is needed"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; 'silu' is needed"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'; 'sqrtsoftplus' or 'sigmoid'"),
        ({"layer_types": ["full_attention"] * 5}, "layer_types is .*5 times 'sliding_attention'"),
        ({"layer_types": None, "compress_ratios": [0, 4, 8, 4, 0]}, "compress_ratios is .*5 times"),
        ({"mlp_layer_types": ["moe"] * 4}, "mlp_layer_types is .*5 times 'hash_moe' or 'moe'"),
        ({"compress_rates": 4}, "compress_rates is 4; an object or null"),
        ({"compress_rate_hca": 48}, "compress is 48, must divide 32 or be a multiple of it"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn'; an object or null"),
        ({"o_groups": 3}, "output_groups is 3, must divide n_heads"),
        ({"hc_mult": 9}, "hyper_streams is 9, must be 0 to 8"),
        ({"index_head_dim": 4}, "index_dim is 4, must be 8 to 512"),
        ({"head_dim": 40}, "head_dim is 40, must be a multiple of 16"),
    ],
)
def test_what_is_not_computed_is_refused(
    changes: dict[str, Any], error: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=error):
        open_checkpoint(write_case(NAME, tmp_path / "m", **changes))


@pytest.mark.parametrize(("name", "rows", "cols"), [("o_proj", 64, 64), ("q_proj", 128, 24)])
def test_adapters_of_attention_are_refused(name: str, rows: int, cols: int, tmp_path: Path) -> None:
    prefix = f"base_model.model.model.layers.1.self_attn.{name}.lora_"
    shapes = {"A": (2, cols), "B": (rows, 2)}
    tensors = {f"{prefix}{part}.weight": np.ones(s, np.float32) for part, s in shapes.items()}
    adapter = write_adapter(tmp_path / "adapter", tensors, lora_config(2, 4))
    with open_checkpoint(write_case(NAME, tmp_path / "hf")) as checkpoint:
        config = checkpoint.config
    with pytest.raises(ModelFileError, match=f"{name} is not supported; accepted for layer 1 are"):
        open_adapter(adapter, config)


def test_a_gguf_file_is_the_model_of_its_directory(tmp_path: Path) -> None:
    """Layers of all kinds, scaled angles, routers that look tokens up and routers that choose."""
    name = "deepseek_v4_odd"  # whose conversion writes every kind
    ratios, kinds = (0, 4, 128), family_model(NAME).config["layer_types"][:3]
    model = family_model(NAME)
    config = model.config | {"num_hidden_layers": 3, "layer_types": kinds}
    config["compress_rates"] = {"compressed_sparse_attention": 4, HEAVY: 128}
    tensors = {key: one for key, one in model.tensors.items() if not key.startswith(LATER)}
    ape = "model.layers.2.attn.compressor.ape"
    tensors[ape] = np.resize(tensors[ape], (128, tensors[ape].shape[1]))
    config["mlp_layer_types"] = config["mlp_layer_types"][:3]
    whole = replace(model, name=name, config=config, tensors=tensors)
    written = CASES[NAME] | {"num_hidden_layers": 3, "compress_ratios": [*ratios]}
    del written["layer_types"], written["compress_rates"]
    folder = write_model(whole, tmp_path / "hf", written)
    file = write_gguf(whole, tmp_path / "m.gguf")
    check_same(folder, file)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"expert_gating_func": 2}, r"deepseek4\.expert_gating_func is 2; 4 is needed"),
        ({"expert_shared_count": 2}, r"expert_shared_count is 2; 1 is needed"),
        ({"attention.compress_ratios": [8]}, r"compress_ratios is \[8\]; 1 times 0 or 4 or 128"),
        ({"swiglu_clamp_shexp": [3.0]}, r"swiglu_clamp_exp is \[7\.0\]; one positive number"),
        ({"rope.scaling.type": "longrope"}, r"is 'longrope'; none, linear or yarn is needed"),
        ({"attention.value_length": 32}, r"is 32; the length of a key, 48, is needed"),
        ({"expert_weights_norm": False}, r"expert_weights_norm is False; true is needed"),
    ],
)
def test_fields_of_gguf_files_are_checked(
    changes: dict[str, Any], error: str, tmp_path: Path
) -> None:
    file = write_gguf(family_model("deepseek_v4_odd"), tmp_path / "m.gguf", changes)
    with pytest.raises(ModelFileError, match=error):
        open_checkpoint(file)


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0])
def test_tables_in_blocks_of_integers_become_floats(
    kind: gguf.GGMLQuantizationType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As programs that quantize GGUF files write them."""
    whole, original = family_model("deepseek_v4_odd"), gguf.GGUFWriter.add_tensor
    expected: dict[str, Any] = {}

    def add_tensor(self: gguf.GGUFWriter, name: str, array: Any) -> None:
        if not re.search(r"compressor_ape|hc_(\w+_)?fn", name) or array.shape[-1] % 32:
            return original(self, name, array)
        blocks = gguf.quantize(array, kind)
        expected[name] = gguf.dequantize(blocks, kind).reshape(-1)
        return original(self, name, blocks, raw_dtype=kind)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add_tensor)
    file = write_gguf(whole, tmp_path / "m.gguf")
    assert len(expected) == 4
    with open_checkpoint(file) as checkpoint:
        source = Source(checkpoint)
        names = {
            "blk.0.attn_compressor_ape.weight": (Role.COMPRESS_POSITIONS, 0),
            "blk.0.hc_attn_fn.weight": (Role.HYPER_ATTN, 0),
            "blk.0.hc_ffn_fn.weight": (Role.HYPER_FFN, 0),
            "output_hc_fn.weight": (Role.HYPER_HEAD, 0),
        }
        for name, at in names.items():
            assert np.array_equal(source(*at).reshape(-1), expected[name]), name
