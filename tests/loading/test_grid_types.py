"""GGUF's types of one to three bits: every weight is what gguf-py decodes."""

import gguf
import numpy as np
import pytest

import tiny_models
from lanewise import cli
from lanewise.loading.base.checkpoint import Role, Tensor
from lanewise.loading.base.formats import BLOCKS, HELD, TensorType
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import usable_levels
from lanewise.runtime.unpacking import file_weights
from quantizing import logits_of

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

random = np.random.default_rng(11)
# NVFP4 becomes rows of FP4 while a file is opened: test_nvfp4.py.
KINDS = [kind for kind in HELD if kind is not TensorType.NVFP4]
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}


def blocks_of(kind, rows, cols):
    """Random blocks: all bits that a file may have, scales of the size that weights have."""
    size = BLOCKS[kind]
    blocks = cols // size.weights
    data = random.integers(0, 256, (rows, blocks, size.n_bytes)).astype(np.uint8)
    scales = random.uniform(1e-4, 4e-4, (rows, blocks, 1)).astype(np.float16).view(np.uint8)
    if kind is TensorType.IQ1_M:  # four bits of it in each word of scales
        words = np.ascontiguousarray(data[..., 48:]).view(np.uint16)
        halves = scales.view(np.uint16)
        for i in range(4):
            words[..., i] = words[..., i] & 0x0FFF | (halves[..., 0] >> 4 * i & 15) << 12
        data[..., 48:] = words.view(np.uint8)
    elif kind in (TensorType.TQ1_0, TensorType.TQ2_0):
        data[..., -2:] = scales
        if kind is TensorType.TQ2_0:
            data[..., :64] &= ~(data[..., :64] << 1) | 0x55  # no code of 3
    else:
        data[..., :2] = scales
    return data.reshape(rows, -1)


def decoded(kind, data):
    if kind in (TensorType.Q1_0, TensorType.Q2_0):  # newer than the package
        return decoded_by_hand(kind, data)
    return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind.name]).astype(np.float32)


def decoded_by_hand(kind, data):
    """Weights of ggml's blocks of one bit (minus or plus the scale) and of two (code - 1)."""
    rows, size = len(data), BLOCKS[kind]
    blocks = data.reshape(rows, -1, size.n_bytes)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
    bits = np.unpackbits(blocks[..., 2:], axis=-1, bitorder="little")
    if kind is TensorType.Q1_0:
        levels = 2 * bits.astype(np.float32) - 1
    else:
        levels = bits[..., ::2] + 2 * bits[..., 1::2].astype(np.float32) - 1
    return (levels * scales).reshape(rows, -1)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_weights_are_those_of_gguf(kind):
    for number in range(20):
        rows, cols = 8 + number, 256 * (1 + number % 3)
        data = blocks_of(kind, rows, cols)
        tensor = Tensor(
            "t", Role.FFN_UP, 0, kind, rows, cols, memoryview(data.reshape(-1).data), rope_heads=0
        )
        assert np.array_equal(file_weights(tensor), decoded(kind, data))


def write(folder, kind):
    """A model whose feed-forward matrices are of a type, and the same with its weights as F32."""
    model = tiny_models.tiny_model("llama3", **SIZES, num_key_value_heads=2)
    floats, raw = dict(model.tensors), {}
    for name in [name for name in floats if ".mlp." in name]:
        data = blocks_of(kind, *floats[name].shape)
        floats[name], raw[name] = decoded(kind, data), data
    model = tiny_models.TinyModel(model.family, model.config, floats)
    gguf.GGML_QUANT_SIZES.setdefault(kind, (BLOCKS[kind].weights, BLOCKS[kind].n_bytes))
    types = {name: (kind, data) for name, data in raw.items()}
    return (
        tiny_models.write_gguf(model, folder / "own.gguf", raw=types),
        tiny_models.write_gguf(model, folder / "floats.gguf"),
    )


def kinds_of(path):
    with open_checkpoint(path) as checkpoint:
        return {tensor.type for tensor in checkpoint.tensors if tensor.role == Role.FFN_UP}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_logits_are_those_of_the_same_weights(kind, tmp_path):
    own, floats = write(tmp_path, kind)
    expected = logits_of(floats, threads=2)
    assert kinds_of(own) == {kind}
    assert np.array_equal(logits_of(own, threads=2, float_activations=True), expected)
    first = logits_of(own, threads=2)
    assert 0 < np.abs(first - expected).max() / np.abs(expected).max() < 0.1
    for isa in usable_levels():
        assert np.array_equal(logits_of(own, isa=isa, threads=2), first), isa


@pytest.mark.parametrize("kind", [TensorType.IQ2_XS, TensorType.IQ3_S], ids=lambda kind: kind.name)
def test_files_and_packed_files_are_quantized_from_the_same_weights(kind, tmp_path, capsys):
    own, _ = write(tmp_path, kind)
    packed, found = tmp_path / "packed", []
    assert cli.main(["pack", str(own), "-o", str(packed)]) == 0
    assert kinds_of(packed) == {HELD[kind]}
    assert np.array_equal(logits_of(packed), logits_of(own))
    for name, source in (("a", own), ("b", packed)):
        out = tmp_path / name
        options = ("--format", "q8_0", "--check-tokens", "0", "-o", str(out))
        assert cli.main(["quantize", str(source), *options]) == 0
        found.append(logits_of(out))
    assert np.array_equal(*found)
