"""GPTQ, AWQ and compressed-tensors checkpoints: every weight is what its packing says it is."""

import numpy as np
import pytest

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.sources import SourceTensor
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.quantized.packed_linear import read_scales
from lanewise.loading.quantized.quantization import Scheme
from lanewise_quantizer.fit.source import Source
from packed_by_others import ROLES, rewrite_config, write_model

LAYOUTS = {
    "awq 128": ("awq", {"group": 128}, TensorType.A4_G128),
    "awq 64": ("awq", {"group": 64}, TensorType.A4_G64),
    "awq 32": ("awq", {"group": 32}, TensorType.A4_G32),
    "awq whole rows": ("awq", {"group": 0}, TensorType.A4_G128),
    "awq odd groups": ("awq", {"group": 96}, TensorType.A4_G32),
    "gptq": ("gptq", {"group": 64}, TensorType.A4_G64),
    "gptq v2": ("gptq", {"group": 64, "v2": True}, TensorType.A4_G64),
    "gptq symmetric": ("gptq", {"group": 64, "symmetric": True}, TensorType.Q4_G64),
    "gptq symmetric rows": ("gptq", {"group": 0, "symmetric": True}, TensorType.Q4_G128),
    "gptq symmetric 32": ("gptq", {"group": 32, "symmetric": True}, TensorType.A4_G32),
    "gptq 8 bits": ("gptq", {"bits": 8, "group": 128}, TensorType.A8_G128),
    "gptq 8 bits 64": ("gptq", {"bits": 8, "group": 64}, TensorType.A8_G32),
    "gptq act-order": ("gptq", {"group": 64, "act_order": True}, TensorType.A4_G64),
    "gptq act-order 128": ("gptq", {"group": 128, "act_order": True}, TensorType.A4_G128),
    "gptq act-order 8": ("gptq", {"bits": 8, "group": 32, "act_order": True}, TensorType.A8_G32),
    "gptq 2 bits": ("gptq", {"bits": 2, "group": 32}, TensorType.A4_G32),
    "gptq 2 bits symmetric": ("gptq", {"bits": 2, "symmetric": True}, TensorType.Q4_G64),
    "gptq 3 bits": ("gptq", {"bits": 3, "group": 64}, TensorType.A4_G64),
    "gptq 3 bits rows": ("gptq", {"bits": 3, "group": 0, "symmetric": True}, TensorType.Q4_G128),
    "gptq 3 bits act-order": ("gptq", {"bits": 3, "act_order": True}, TensorType.A4_G64),
    "compressed": ("compressed-tensors", {"group": 32}, TensorType.A4_G32),
    "compressed symmetric": (
        "compressed-tensors",
        {"group": 64, "symmetric": True},
        TensorType.Q4_G64,
    ),
    "compressed rows": ("compressed-tensors", {"group": 0, "bits": 8}, TensorType.A8_G128),
}


def compare(model) -> set[TensorType]:
    """Check every packed layer; returns the types they have."""
    with open_checkpoint(model.packed) as checkpoint:
        source = Source(checkpoint)
        for name, layer in model.layers.items():
            _, _, number, name = name.split(".", 3)
            expected = layer.weights()
            # Where act-order is undone in gate and up, whose outputs are the inputs of down.
            down = model.layers[f"model.layers.{number}.mlp.down_proj"]
            order = np.argsort(down.group_of, kind="stable")
            if name in ("mlp.gate_proj", "mlp.up_proj"):
                expected = expected[order]
            elif name == "mlp.down_proj":
                expected = expected[:, order]
            found = source(ROLES[name], int(number))
            assert np.array_equal(found, expected), name
        return {t.type for t in checkpoint.tensors if t.role in ROLES.values()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_weight_is_that_of_the_packing(name, tmp_path):
    method, options, kind = LAYOUTS[name]
    assert compare(write_model(tmp_path, method, **options)) == {kind}


def test_bytes_are_known_before_they_are_made_and_one_tensor_is_held(tmp_path):
    with open_checkpoint(write_model(tmp_path, "awq").packed) as checkpoint:
        first, second = (t for t in checkpoint.tensors if t.role == Role.ATTN_OUTPUT)
        held = first.data
        copy = bytes(held)
        assert first.n_bytes == len(copy)
        assert first.data is held
        assert bytes(second.data) != copy
        assert held == copy  # still there for whoever holds it
        assert first.data is not held  # but made anew


@pytest.mark.parametrize("symmetric_value", ["v1", "v2"])
def test_zero_points_tell_the_version_where_the_config_has_the_wrong_one(tmp_path, symmetric_value):
    v2 = symmetric_value == "v2"
    model = write_model(tmp_path, "gptq", symmetric=True, v2=v2)
    wrong = "gptq" if v2 else "gptq_v2"
    rewrite_config(model.packed, lambda about: about | {"checkpoint_format": wrong})
    assert compare(model) == {TensorType.Q4_G64}


def test_settings_may_lie_in_a_file_of_their_own(tmp_path):
    model = write_model(tmp_path, "awq")
    path = model.packed / "config.json"
    path.write_text((model.floats / "config.json").read_text())
    own = '{"zero_point": true, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}'
    (model.packed / "quant_config.json").write_text(own)
    assert compare(model) == {TensorType.A4_G64}


def test_a_layer_that_was_left_out_stays_as_it_is_and_follows_the_order(tmp_path):
    left_out = "model.layers.0.mlp.up_proj"

    def edit(tensors):
        for part in ("qweight", "qzeros", "scales", "g_idx"):
            del tensors[f"{left_out}.{part}"]
        tensors[f"{left_out}.weight"] = kept

    kept = write_model(tmp_path / "first", "gptq").layers[left_out].weights()
    model = write_model(tmp_path / "second", "gptq", act_order=True, edit=edit)
    order = np.argsort(model.layers["model.layers.0.mlp.down_proj"].group_of, kind="stable")
    with open_checkpoint(model.packed) as checkpoint:
        assert np.array_equal(Source(checkpoint)(Role.FFN_UP), kept[order])


def test_biases_of_zeros_are_left_out(tmp_path):
    def edit(tensors):
        tensors["model.layers.0.mlp.down_proj.bias"] = np.zeros(128, np.float16)

    assert compare(write_model(tmp_path, "gptq", edit=edit)) == {TensorType.A4_G64}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "fp9"}, "quant_method 'fp9' is not supported; accepted are gptq, awq"),
        ({"bits": 5}, "bits is 5; 2 or 3 or 4 or 8 is needed"),
        ({"bits": "4"}, "bits is '4'; a whole number"),
        ({"group_size": 16}, "group_size is 16; -1 or a multiple of 32 is needed"),
        ({"group_size": 128}, "g_idx' does not put 128 inputs in each group from 0 to 1"),
        ({"quant_method": "awq"}, "24 inputs; accepted: a multiple of 32"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'; 'gptq' or 'gptq_v2'"),
        ({"quant_method": "awq", "version": "gemv"}, "version is 'gemv'; 'gemm' is needed"),
        ({"quant_method": "awq", "zero_point": False}, "zero_point is False; true is needed"),
        ({"quant_method": "compressed-tensors"}, "format is missing; 'pack-quantized' or"),
    ],
)
def test_settings_that_cannot_be_used_are_explained(tmp_path, settings, message):
    model = write_model(tmp_path, "gptq", settings=settings)
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(model.packed)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", [TensorType.BF16, TensorType.F32])
def test_scales_of_other_types_are_rounded_to_f16(kind):
    wide = np.array([[0.0123, 1.5], [3e-5, 2.0]], np.float32)
    data = wide.tobytes()
    expected = wide
    if kind == TensorType.BF16:
        short = (wide.view(np.uint32) >> 16).astype("<u2")
        expected = (short.astype(np.uint32) << 16).view(np.float32)
        data = short.tobytes()
    tensor = SourceTensor("file", (2, 2), kind, memoryview(data), lambda: None)
    scheme = Scheme("awq", 4, 64, symmetric=False, has_zeros=True)
    found = read_scales("x.scales", tensor, scheme, 2, 2)
    assert np.array_equal(found, expected.T.astype(np.float16))


def drop(name):
    return lambda tensors: tensors.pop(name)


def put(name, value):
    return lambda tensors: tensors.update({name: value})


O_PROJ = "model.layers.0.self_attn.o_proj"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (drop(O_PROJ + ".scales"), f"layer '{O_PROJ}' lacks scales"),
        (drop(O_PROJ + ".qweight"), f"layer '{O_PROJ}' lacks qweight"),
        (put(O_PROJ + ".qweight", np.zeros((16, 128), np.float32)), "is F32 [16, 128]; I32"),
        (put(O_PROJ + ".scales", np.zeros((2, 64), np.float16)), "is F16 [2, 64]; [2, 128]"),
        (put(O_PROJ + ".scales", np.full((2, 128), np.inf, np.float16)), "f16 does not"),
        (put(O_PROJ + ".scales", np.full((2, 128), 7e4, np.float32)), "f16 does not"),
        (put(O_PROJ + ".qzeros", np.zeros((2, 15), np.int32)), "is I32 [2, 15]; [2, 16]"),
        (put(O_PROJ + ".g_idx", np.zeros(128, np.int32)), "does not put 64 inputs in each group"),
        (put(O_PROJ + ".g_idx", np.arange(64, dtype=np.int32)), "is I32 [64]; [128]"),
        (put(O_PROJ + ".g_idx", np.full(128, -1, np.int32)), "does not put 64 inputs"),
        (put(O_PROJ + ".weight", np.zeros((128, 128), np.float32)), "is packed and unpacked"),
        (put(O_PROJ + ".bias", np.ones(128, np.float16)), "missing tensor"),
        (
            put(
                "model.layers.0.self_attn.k_proj.g_idx", np.arange(128, dtype=np.int32)[::-1] // 64
            ),
            "read the same inputs, but their g_idx put them in different orders",
        ),
    ],
)
def test_layers_that_cannot_be_used_are_explained(tmp_path, edit, message):
    model = write_model(tmp_path, "gptq", edit=edit)
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(model.packed)
    assert message in str(caught.value)
