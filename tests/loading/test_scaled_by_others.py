"""FP8, INT8 and NF4 checkpoints, GPTQ of few bits and mixed ones: every weight is what it says."""

import json

import numpy as np
import pytest

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.quantized.scaled_sources import FLOAT8
from lanewise.runtime.targets import target_types
from lanewise_quantizer.fit.source import Source
from packed_by_others import ROLES, compressed_tensors, layer_of
from scaled_by_others import fp8, of_blocks, of_matrix, of_rows, random, value_of, write


@pytest.mark.parametrize(("kind", "bits", "largest"), [("F8_E4M3", 4, 448), ("F8_E5M2", 5, 57344)])
def test_values_of_fp8(kind, bits, largest):
    expected = np.array([value_of(code, bits) for code in range(256)], np.float32)
    assert np.array_equal(FLOAT8[kind], expected, equal_nan=True)
    assert np.nanmax(FLOAT8[kind][np.isfinite(FLOAT8[kind])]) == largest


def compare(folder, expected):
    with open_checkpoint(folder) as checkpoint:
        source = Source(checkpoint)
        for name, weights in expected.items():
            _, _, number, name = name.split(".", 3)
            found = source(ROLES[name], int(number))
            assert np.array_equal(found, weights), name
        held = target_types(checkpoint, None)
        wanted = [t for t in checkpoint.tensors if t.role in ROLES.values()]
        kinds = {t.type for t in wanted}
        return kinds, {h for h, t in zip(held, checkpoint.tensors, strict=True) if t in wanted}


FP8 = {
    "blocks": ({"quant_method": "fp8", "weight_block_size": [48, 80]}, fp8(of_blocks)),
    "matrix": ({"quant_method": "fp8"}, fp8(of_matrix)),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, fp8(of_rows, (".weight", ".weight_scale"))),
    "modelopt": (
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        fp8(of_matrix, (".weight", ".weight_scale")),
    ),
    "e5m2": ({"quant_method": "fp8"}, fp8(of_rows, kind="F8_E5M2", bits=5)),
    "compressed": (
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                    "input_activations": {"num_bits": 8, "type": "float", "dynamic": True},
                }
            },
        },
        fp8(of_rows, (".weight", ".weight_scale")),
    ),
}


@pytest.mark.parametrize("name", FP8)
def test_fp8_is_its_value_times_its_scale(name, tmp_path):
    settings, convert = FP8[name]
    expected = write(tmp_path, settings, convert)
    assert compare(tmp_path, expected) == ({TensorType.F32}, {TensorType.Q8_0})


INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
            "input_activations": {"num_bits": 8, "type": "int", "dynamic": True},
        }
    },
}


def int8(layer, weights):
    codes = random.integers(-128, 128, weights.shape).astype(np.int8)
    scales = random.uniform(1e-3, 1e-2, (len(weights), 1)).astype(np.float32)
    short = (scales.view(np.uint32) >> 16).astype(np.uint16)  # bfloat16
    exact = (short.astype(np.uint32) << 16).view(np.float32)
    made = {".weight": ("I8", codes), ".weight_scale": ("BF16", short)}
    return made, codes.astype(np.float32) * exact


def test_int8_rows_stay_integers(tmp_path):
    expected = write(tmp_path, INT8, int8)
    assert compare(tmp_path, expected) == ({TensorType.W8A8}, {TensorType.W8A8})


NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


def nf4(nested):
    def convert(layer, weights):
        count = weights.size
        values = np.sort(random.uniform(-1, 1, 16)).astype(np.float32)
        codes = random.integers(0, 16, count).astype(np.uint8)
        blocks = -(-count // 64)
        about = {"quant_type": "nf4", "blocksize": 64, "shape": list(weights.shape)}
        made = {
            ".weight": ("U8", (codes[0::2] << 4 | codes[1::2])[:, None]),
            ".weight.quant_map": ("F32", values),
        }
        if nested:
            table = random.uniform(0, 1, 256).astype(np.float32)
            outer = random.uniform(0, 1, -(-blocks // 256)).astype(np.float32)
            of_blocks = random.integers(0, 256, blocks).astype(np.uint8)
            about |= {"nested_blocksize": 256, "nested_offset": 0.25}
            made |= {
                ".weight.absmax": ("U8", of_blocks),
                ".weight.nested_absmax": ("F32", outer),
                ".weight.nested_quant_map": ("F32", table),
            }
            scales = table[of_blocks] * outer[np.arange(blocks) // 256] + np.float32(0.25)
        else:
            scales = random.uniform(0, 1, blocks).astype(np.float32)
            made[".weight.absmax"] = ("F32", scales)
        state = np.frombuffer(json.dumps(about).encode(), np.uint8)
        made[".weight.quant_state.bitsandbytes__nf4"] = ("U8", state)
        return made, (values[codes] * scales[np.arange(count) // 64]).reshape(weights.shape)

    return convert


@pytest.mark.parametrize("nested", [False, True])
def test_nf4_is_its_value_times_that_of_its_block(nested, tmp_path):
    expected = write(tmp_path, NF4, nf4(nested))
    assert compare(tmp_path, expected) == ({TensorType.F32}, {TensorType.Q8_0})


def mixed(layer, weights):
    """Down in FP8, attention in eight bits of whole rows, the rest in four of 32 inputs."""
    if layer.endswith("down_proj"):
        return fp8(of_rows, (".weight", ".weight_scale"))(layer, weights)
    bits, group = (8, 0) if "self_attn" in layer else (4, 32)
    packed = layer_of(weights, bits, group, symmetric=True, order=None)
    made = compressed_tensors(packed, bits, symmetric=True)
    kinds = {np.dtype(np.int32): "I32", np.dtype(np.int64): "I64", np.dtype(np.float16): "F16"}
    parts = {f".{name}": (kinds[part.dtype], part) for name, part in made.items()}
    return parts, packed.weights()


def test_layers_of_one_model_may_be_packed_in_different_ways(tmp_path):
    def group(bits, strategy, **more):
        return {"num_bits": bits, "type": "int", "strategy": strategy, "symmetric": True} | more

    settings = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            "a": {"format": "pack-quantized", "weights": group(4, "group", group_size=32)},
            "b": {"format": "pack-quantized", "weights": group(8, "channel")},
            "c": {
                "format": "float-quantized",
                "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
            },
        },
    }
    kinds, _ = compare(tmp_path, write(tmp_path, settings, mixed))
    assert kinds == {TensorType.A4_G32, TensorType.A8_G128, TensorType.F32}


def without(end):
    def convert(layer, weights):
        made, values = fp8(of_blocks)(layer, weights)
        del made[end]
        return made, values

    return convert


def test_what_is_not_asked_of_parts_is_held_as_without_asking(tmp_path):
    write(tmp_path, {"quant_method": "fp8"}, fp8(of_matrix))
    with open_checkpoint(tmp_path) as checkpoint:
        targets = target_types(checkpoint, "attention=q4_0")
        tensors = zip(checkpoint.tensors, targets, strict=True)
        kinds = {tensor.role: target for tensor, target in tensors}
        assert kinds[Role.ATTN_Q] == TensorType.Q4_0
        assert kinds[Role.FFN_UP] == TensorType.Q8_0
        assert kinds[Role.FFN_NORM] == TensorType.F32
        assert set(target_types(checkpoint, "f32")) == {TensorType.F32}


@pytest.mark.parametrize(
    ("settings", "convert", "message"),
    [
        (
            {"quant_method": "fp8"},
            fp8(of_blocks),
            "[3, 2] beside codes [128, 128]; accepted: [1, 1",
        ),
        ({"quant_method": "fp8"}, without(".weight_scale_inv"), "is F8_E4M3 without a scale"),
        ({"quant_method": "fp8", "weight_block_size": 8}, fp8(of_matrix), "weight_block_size is 8"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, nf4(False), "load_in_8bit is"),
        ({"quant_method": "eetq"}, fp8(of_matrix), "quant_method 'eetq' is not supported"),
    ],
)
def test_what_cannot_be_used_is_explained(settings, convert, message, tmp_path):
    write(tmp_path, settings, convert)
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(tmp_path)
    assert message in str(caught.value)


def test_a_scale_that_is_no_number_is_refused(tmp_path):
    def convert(layer, weights):
        made, values = fp8(of_matrix)(layer, weights)
        made[".weight_scale_inv"] = ("F32", np.array([np.nan], np.float32))
        return made, values

    write(tmp_path, {"quant_method": "fp8"}, convert)
    with pytest.raises(ModelFileError, match="holds NaN or infinity"):
        open_checkpoint(tmp_path)
