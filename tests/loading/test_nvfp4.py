"""NVFP4 of ModelOpt, compressed-tensors and GGUF: every weight is what it says, at every level."""

import json

import gguf
import numpy as np
import pytest

import tiny_models
from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import usable_levels
from lanewise_quantizer.fit.source import Source
from packed_by_others import ROLES
from quantizing import logits_of
from scaled_by_others import model_of, random, value_of, write

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
E4M3 = np.array([value_of(code, 4) for code in range(127)], np.float32)
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group"},
            "input_activations": {"num_bits": 4, "type": "float", "dynamic": "local"},
        }
    },
}


def whole_scale():
    """A factor of a whole matrix that 16 significant bits hold."""
    return np.float32(int(random.integers(1 << 15, 1 << 16)) * 2.0**-27)


def codes_and_scales(rows, cols):
    codes = random.integers(0, 16, (rows, cols)).astype(np.uint8)
    return codes, random.integers(0, 127, (rows, cols // 16)).astype(np.uint8)


def weights_of(codes, scales, whole):
    return E2M1[codes] * (E4M3[scales] * whole).repeat(16, axis=1)


def modelopt(layer, weights):
    codes, scales = codes_and_scales(*weights.shape)
    whole = whole_scale()
    made = {
        ".weight": ("U8", codes[:, ::2] | codes[:, 1::2] << 4),
        ".weight_scale": ("F8_E4M3", scales),
        ".weight_scale_2": ("F32", np.array(whole)),
        ".input_scale": ("F32", np.ones(1, np.float32)),
    }
    return made, weights_of(codes, scales, whole)


def compressed(layer, weights):
    codes, scales = codes_and_scales(*weights.shape)
    whole = np.float32(2.0 ** -int(random.integers(8, 12)))
    made = {
        ".weight_packed": ("U8", codes[:, ::2] | codes[:, 1::2] << 4),
        ".weight_scale": ("F8_E4M3", scales),
        ".weight_global_scale": ("F32", np.array([1 / whole])),
        ".input_global_scale": ("F32", np.ones(1, np.float32)),
    }
    return made, weights_of(codes, scales, whole)


def compare(folder, expected):
    with open_checkpoint(folder) as checkpoint:
        source = Source(checkpoint)
        for name, weights in expected.items():
            _, _, number, name = name.split(".", 3)
            assert np.array_equal(source(ROLES[name], int(number)), weights), name
        assert {t.type for t in checkpoint.tensors if t.role in ROLES.values()} == {TensorType.FP4}


DIRECTORIES = {
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, modelopt),
    "weights alone": ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, modelopt),
    "compressed": (COMPRESSED, compressed),
}


@pytest.mark.parametrize("case", DIRECTORIES)
def test_weights_of_directories_are_what_they_say(case, tmp_path):
    compare(tmp_path, write(tmp_path, *DIRECTORIES[case]))


def test_modelopts_own_file_says_it_too(tmp_path):
    expected = write(tmp_path, *DIRECTORIES["modelopt"])
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["quantization_config"]
    path.write_text(json.dumps(config))
    own = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(own))
    compare(tmp_path, expected)


def without(ending):
    def convert(layer, weights):
        made, weights = modelopt(layer, weights)
        return {name: one for name, one in made.items() if name != ending}, weights

    return convert


def with_changed(ending, change):
    def convert(layer, weights):
        made, weights = modelopt(layer, weights)
        kind, values = made[ending]
        return made | {ending: (kind, change(values))}, weights

    return convert


WRONG = {
    "awq": ({"quant_algo": "NVFP4_AWQ"}, modelopt, "quant_algo is 'NVFP4_AWQ'; 'FP8' or 'NVFP4'"),
    "no factor": ({}, without(".weight_scale_2"), "is NVFP4 without weight_scale_2"),
    "scales": (
        {},
        with_changed(".weight_scale", lambda scales: scales[:, :4]),
        "a scale for each 16 inputs",
    ),
    "nan": (
        {},
        with_changed(".weight_scale_2", lambda _: np.array(np.nan, np.float32)),
        "is NaN or infinity",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_used_is_explained(case, tmp_path):
    settings, convert, message = WRONG[case]
    modelopts = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    write(tmp_path, modelopts | settings, convert)
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(tmp_path)
    assert message in str(caught.value)


def gguf_models(folder, factor):
    """A file whose feed-forward matrices are NVFP4, and the same with its weights as F32."""
    model = model_of()
    floats, raw, scales = dict(model.tensors), {}, {}
    for name in [name for name in floats if ".mlp." in name]:
        rows, cols = floats[name].shape
        data = random.integers(0, 256, (rows, cols // 64, 36)).astype(np.uint8)
        data[..., :4] = random.integers(16, 64, (rows, cols // 64, 4))
        data[0, 0, :2] = 0x7F, 0x80 | 20  # counts as 0; the sign is not used
        whole = factor()
        blocks = data.reshape(rows, -1)
        values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.NVFP4)
        floats[name] = values.reshape(rows, cols).astype(np.float32) * whole
        raw[name] = (gguf.GGMLQuantizationType.NVFP4, blocks)
        scales[name] = whole
    files = (folder / "own.gguf", folder / "floats.gguf")
    changed = tiny_models.TinyModel(model.family, model.config, floats)
    tiny_models.write_gguf(changed, files[0], raw=raw, scales=scales)
    tiny_models.write_gguf(changed, files[1])
    return files


@pytest.mark.native
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("factor", [lambda: np.float32(1), whole_scale], ids=["one", "some"])
def test_logits_of_gguf_are_those_of_its_weights(factor, tmp_path):
    own, floats = gguf_models(tmp_path, factor)
    with open_checkpoint(own) as checkpoint:
        found = {tensor.type for tensor in checkpoint.tensors if tensor.role == Role.FFN_UP}
    assert found == {TensorType.FP4}
    expected = logits_of(floats, threads=2)
    assert np.array_equal(logits_of(own, threads=2, float_activations=True), expected)
    first = logits_of(own, threads=2)
    assert 0 < np.abs(first - expected).max() / np.abs(expected).max() < 0.1
    for isa in usable_levels():
        assert np.array_equal(logits_of(own, isa=isa, threads=2), first), isa
