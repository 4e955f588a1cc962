"""BitNet's files: packed, trained and ternary floats become the same codes; what is refused."""

import json

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from family_gguf import gguf_arrays, write_gguf
from family_models import family_model, ternary_floats, write_case
from lanewise import cli
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.quantized.ternary_sources import nearest_factors
from lanewise_quantizer.fit.source import Source
from quantizing import logits_of
from raw_safetensors import write_raw

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

CLASS = "autobitlinear"


def settings(**own):
    return {"quantization_config": {"quant_method": "bitnet", "linear_class": CLASS} | own}


def weights_of(path):
    """The matrices of all layers of a directory, and the types in which they are stored."""
    with open_checkpoint(path) as checkpoint:
        tensors = [t for t in checkpoint.tensors if t.name.endswith("_proj.weight")]
        assert all(layer.row_codes for layer in checkpoint.config.layers)
        source = Source(checkpoint)
        return {t.name: source(t.role, t.layer) for t in tensors}, {t.type for t in tensors}


@pytest.mark.parametrize(("name", "kind"), [("bitnet", "CB2"), ("bitnet_narrow", "F32")])
def test_packed_weights_are_codes_times_the_scale(name, kind, tmp_path):
    found, kinds = weights_of(write_case(name, tmp_path / "model"))
    expected = ternary_floats(family_model(name).tensors)
    assert kinds == {TensorType[kind]}
    assert len(found) == 14
    for key, weights in found.items():
        assert np.array_equal(weights, expected[key]), key
        assert len(np.unique(weights)) == 3


def test_a_scale_that_divides(tmp_path):
    found, _ = weights_of(write_case("llama_ternary", tmp_path / "model"))
    tensors = family_model("llama_ternary").tensors
    for key, weights in found.items():
        assert np.abs(weights).max() == 1 / tensors[f"{key}_scale"][0]


def rounded_to(kind, values):
    """Values of a type as float32; bfloat16's are rounded to nearest, ties to even."""
    values = np.asarray(values, np.float32)
    if kind == "bf16":
        bits = values.view(np.uint32)
        return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return values.astype(np.float16).astype(np.float32) if kind == "f16" else values


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
def test_trained_weights_are_rounded_to_their_mean_magnitude(kind, tmp_path):
    """In the type of the file, as its makers' code does."""
    path = write_case("bitnet", tmp_path / "model", **settings(quantization_mode="online"))
    stored, expected = {}, {}
    rng = np.random.default_rng(5)
    for key, array in ternary_floats(family_model("bitnet").tensors).items():
        if not key.endswith("_proj.weight"):
            stored[key] = ("F32", array)
            continue
        values = rounded_to(kind, rng.normal(0, 0.3, array.shape))
        bits = values.view(np.uint32) >> 16
        stored[key] = {
            "f32": ("F32", values),
            "f16": ("F16", values.astype(np.float16)),
            "bf16": ("BF16", bits.astype(np.uint16)),
        }[kind]
        scale = np.float32(1) / np.float32(np.abs(values).mean(dtype=np.float64))
        codes = np.clip(np.rint(values * scale), -1, 1)
        expected[key] = codes * rounded_to(kind, 1 / scale)
    write_raw(path / "model.safetensors", stored)
    found, _ = weights_of(path)
    for key, weights in found.items():
        if kind == "f32":
            assert np.allclose(weights, expected[key], rtol=2.0**-15, atol=0), key
        else:
            assert np.array_equal(weights, expected[key]), key


def test_scales_of_more_than_twelve_bits_are_nearly_kept():
    rng, errors = np.random.default_rng(1), []
    for scale in np.exp(rng.uniform(-12, 4, 2000)).astype(np.float32):
        factor, row_scale = nearest_factors(scale)
        assert 1 <= factor <= 127
        assert row_scale.view(np.uint32) & 0xFFF == 0
        errors.append(abs(float(row_scale) * factor / float(scale) - 1))
    assert max(errors) < 2.0**-15
    assert np.median(errors) < 2.0**-18


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"use_rms_norm": True}, "use_rms_norm is True; false, as norms of what one matrix reads"),
        ({"linear_class": "linear"}, "linear_class is 'linear'; 'bitlinear' or"),
        ({"quantization_mode": "late"}, "quantization_mode is 'late'; 'offline' or"),
        ({"modules_to_not_convert": ["q_proj"]}, "modules_to_not_convert"),
    ],
)
def test_settings_that_change_answers_are_refused(own, message, tmp_path):
    with pytest.raises(ModelFileError, match=message):
        open_checkpoint(write_case("bitnet", tmp_path / "model", **settings(**own)))


def change(path, **tensors):
    file = path / "model.safetensors"
    kept = {k: v for k, v in (load_file(file) | tensors).items() if v is not None}
    save_file(kept, file, metadata={"format": "pt"})
    return path


NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({f"{NAME}_scale": None}, "missing tensor .*up_proj.weight_scale"),
        ({f"{NAME}_scale": np.ones(2, np.float32)}, "is not one number"),
        ({f"{NAME}_scale": np.zeros(1, np.float32)}, "is 0.0; a number above 0"),
        ({NAME: np.full((24, 64), 0xFF, np.uint8)}, "none of -1, 0 and 1"),
        ({NAME: np.linspace(-1, 1, 96 * 64, dtype=np.float32).reshape(96, 64)}, "other values"),
        ({NAME: np.zeros((96, 64), np.int32)}, "is I32; of BitNet's matrices"),
    ],
)
def test_tensors_that_are_not_ternary_are_refused(tensors, message, tmp_path):
    path = change(write_case("bitnet", tmp_path / "model"), **tensors)
    with pytest.raises(ModelFileError, match=message):
        weights_of(path)


def wide(tmp_path):
    """A case whose rows are whole blocks of 256."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4}
    model = family_model("bitnet")
    rng, tensors = np.random.default_rng(3), {}
    for key, array in ternary_floats(model.tensors).items():
        shape = tuple({64: 256, 96: 256, 32: 128}.get(n, n) for n in array.shape)
        if key.startswith("model.embed"):
            shape = (256, 256)
        if key.endswith("_proj.weight"):
            tensors[key] = rng.integers(-1, 2, shape).astype(np.float32) * np.float32(0.125)
        else:
            tensors[key] = rng.normal(0 if len(shape) > 1 else 1, 0.2, shape).astype(np.float32)
    return type(model)(model.name, model.config | sizes, tensors)


@pytest.mark.parametrize("kind", ["TQ1_0", "TQ2_0", "F16"])
def test_ternary_types_of_gguf_have_the_logits_of_floats(kind, tmp_path):
    model = wide(tmp_path)
    floats = write_gguf(model, tmp_path / "floats.gguf")
    arrays = gguf_arrays(model)
    number = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(tmp_path / "coded.gguf", "bitnet-b1.58")
    reader = gguf.GGUFReader(floats)
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for key, array in arrays.items():
        if array.ndim == 2 and key.startswith("blk."):
            writer.add_tensor(key, gguf.quants.quantize(array, number), raw_dtype=number)
        else:
            writer.add_tensor(key, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected, found = logits_of(floats), logits_of(tmp_path / "coded.gguf")
    if kind == "F16":
        assert found.tobytes() == expected.tobytes()
    assert np.abs(found - expected).max() < 2e-5 * np.abs(expected).max()


def test_i2_s_is_refused_as_files_do_not_say_its_order(tmp_path):
    path = write_gguf(family_model("bitnet"), tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    at = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
    assert data[at] == TensorType.F32
    data[at] = 36
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="is I2_S, whose order of weights"):
        open_checkpoint(path)


def test_a_gguf_file_of_other_than_ternary_floats_is_refused(tmp_path):
    model = family_model("bitnet")
    arrays = gguf_arrays(model)
    arrays["blk.0.ffn_up.weight"] = arrays["blk.0.ffn_up.weight"] + np.float32(0.1)
    path = write_gguf(model, tmp_path / "m.gguf", tensors=arrays)
    with pytest.raises(ModelFileError, match="other values than 0"):
        logits_of(path)


def test_plan_and_quantize(tmp_path, capsys):
    path = write_case("bitnet", tmp_path / "model")
    assert cli.main(["quantize", str(path), "-o", str(tmp_path / "q8"), "--format", "q8_0"]) == 0
    whole, coded = logits_of(path), logits_of(tmp_path / "q8")
    assert np.abs(whole - coded).max() < 0.2 * np.abs(whole).max()
    stored = json.loads((tmp_path / "q8" / "config.json").read_text())
    layers = stored["quantization_config"]["model"]["layers"]
    assert all(layer["row_codes"] for layer in layers)
    capsys.readouterr()
    arguments = ["--instance", "c7g.large", "--prompt-tokens", "32", "--answer-tokens", "16"]
    assert cli.main(["plan", str(path), *arguments]) == 0
    assert "c7g.large" in capsys.readouterr().out
