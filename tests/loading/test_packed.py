"""Damage of every kind to a packed directory: the only exception is ModelFileError."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import FAMILIES, error_of, write_directory, write_gguf

import topics
from lanewise.loading.base.checkpoint import Checkpoint, Packing
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.names import HF, TENSOR_NAMES
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.vocabulary.tokenizer_files import GGUF_TOKENIZER
from lanewise.loading.writing.packed_writer import write_blocks, write_json, write_packed
from lanewise_quantizer.commands.partial_output import write_all


def pack(source: Checkpoint, folder: Path) -> Path:
    """Write a packed directory; the panels are made up, for nobody computes here."""
    tensors = []
    for tensor in source.tensors:
        panels = 1 if tensor.rows == 1 else -(-tensor.rows // 32) * 32
        size = panels * tensor.cols * 4
        data = memoryview(random.Random(tensor.rows).randbytes(size))
        name = TENSOR_NAMES[tensor.role][HF].format(tensor.layer)
        packing = Packing("c4", 2**64 - 1 - tensor.layer, 1)
        made = dataclasses.replace(
            tensor, name=name, type=TensorType.F32, stored=data, rope_heads=0, packing=packing
        )
        tensors.append(made)
    write_packed(folder, source, tensors, "scalar")
    return folder


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    path = write_gguf(folder / "m.gguf", FAMILIES["qwen3"])
    with open_checkpoint(path) as source:
        return pack(source, folder / "packed")


def copy(packed: Path, to: Path, name: str, data: bytes) -> Path:
    to.mkdir(exist_ok=True)
    for path in packed.iterdir():
        (to / path.name).write_bytes(data if path.name == name else path.read_bytes())
    return to


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["gguf", "hf"])
def test_what_was_written_is_read(tmp_path: Path, family: str, kind: str) -> None:
    write = write_gguf if kind == "gguf" else write_directory
    path = write(tmp_path / ("m.gguf" if kind == "gguf" else "m"), FAMILIES[family])
    with open_checkpoint(path) as source:
        folder = pack(source, tmp_path / "packed")
        with open_checkpoint(folder) as found:
            assert found.config == source.config
            assert found.name == "packed"
            assert [(t.role, t.layer, t.rows, t.cols) for t in found.tensors] == [
                (t.role, t.layer, t.rows, t.cols) for t in source.tensors
            ]
            assert all(t.rope_heads == 0 and t.packing is not None for t in found.tensors)
            if source.tokenizer.gguf is not None:
                kept = {k: v for k, v in source.tokenizer.gguf.items() if "tokenizer." in k}
                assert found.tokenizer.gguf == kept
            else:
                assert found.tokenizer.text_files == source.tokenizer.text_files
                small = dict(found.tokenizer.json_files)
                config = dict(small.pop("config.json"))
                assert config.pop("quantization_config")["quant_method"] == "lanewise"
                assert {"config.json": config, **small} == source.tokenizer.json_files


def test_matrices_are_aligned(packed: Path) -> None:
    data = (packed / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    assert start % 64 == 0
    offsets = [e["data_offsets"][0] for e in header.values() if e.get("dtype") == "U8"]
    assert len(offsets) > 5
    assert all(offset % 64 == 0 for offset in offsets)
    ends = sorted(e["data_offsets"] for name, e in header.items() if name != "__metadata__")
    assert [end for _, end in ends[:-1]] == [begin for begin, _ in ends[1:]]  # no holes


def test_the_public_reader_reads_it(packed: Path) -> None:
    safetensors = topics.module("safetensors.numpy", "native")
    tensors = safetensors.load_file(packed / "model.safetensors")
    with open_checkpoint(packed) as checkpoint:
        assert {t.name: bytes(t.data) for t in checkpoint.tensors} == {
            name: tensor.tobytes() for name, tensor in tensors.items()
        }


def test_misaligned_matrix_is_refused(packed: Path, tmp_path: Path) -> None:
    data = (packed / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    shifted = (size - 1).to_bytes(8, "little") + data[8 : 7 + size] + data[8 + size :]
    folder = copy(packed, tmp_path / "m", "model.safetensors", shifted)
    error = error_of(folder)
    assert error is not None
    assert "a multiple of 64 is needed" in error


def test_truncated_anywhere_is_refused(packed: Path, tmp_path: Path) -> None:
    whole = (packed / "model.safetensors").read_bytes()
    lengths = random.Random(1).sample(range(len(whole)), 60)
    for length in [*range(20), *lengths, len(whole) - 1]:
        folder = copy(packed, tmp_path / "m", "model.safetensors", whole[:length])
        error = error_of(folder)
        assert error is not None
        assert "model.safetensors" in error
    for name in ("config.json", GGUF_TOKENIZER):
        small = (packed / name).read_bytes()
        for length in range(0, len(small), max(1, len(small) // 40)):
            error = error_of(copy(packed, tmp_path / "m", name, small[:length]))
            assert error is not None
            assert str(tmp_path) in error


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_changed_bytes_of_the_header(
    packed: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Refused with a ModelFileError or still a model: `error_of` lets any other exception out."""
    whole = bytearray((packed / "model.safetensors").read_bytes())
    end = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    folder = copy(packed, tmp_path_factory.getbasetemp() / "m", "model.safetensors", bytes(whole))
    error = error_of(folder)
    assert error is None or str(folder) in error


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("version", 3, "version is 3"),
        ("version", "1", "version is '1'"),
        ("model", None, "model is None"),
        ("model", {}, "ropes is missing"),
        ("model.hidden_size", -1, "hidden_size is -1"),
        ("model.hidden_size", 10**9, "hidden_size is 1000000000, must be 1 to 131072"),
        ("model.hidden_size", 96, "has shape"),
        ("model.layers", [], "at least one layer"),
        ("model.layers", [1], "a list of objects"),
        ("model.layers", 2, "a list of objects"),
        ("model.layers.0", {"gated": {"size": 96}}, "unknown tensors"),
        ("model.layers.0", {}, "one of each of 'attention'"),
        ("model.layers.0", {"gated": {"size": 96}, "other": {}}, "one of each of 'attention'"),
        ("model.layers.0.attention", None, "missing or unknown"),
        ("model.layers.0.attention.head_dim", 7, "layer 0: head_dim is 7, must be even"),
        ("model.layers.0.attention.n_heads", 0, "n_heads is 0"),
        ("model.layers.0.attention.rope", 1, "layer 0: rope is 1, there are 1"),
        ("model.layers.0.attention.window", -1, "window is -1"),
        ("model.layers.0.attention.qk_norm", "some", "qk_norm is 'some'"),
        ("model.layers.0.attention.position_scale", [0.1], "two numbers"),
        ("model.layers.0.gated.size", 160, "has shape"),
        ("model.layers.0.gated.bias", 1, "bias is 1"),
        ("model.layers.1", {"attention": {}, "experts": {}}, "missing or unknown"),
        ("model.architecture", "gpt", "architecture is 'gpt'"),
        ("model.rms_norm_eps", "x", "rms_norm_eps is 'x'"),
        ("model.ropes.0.rotated", 9, "rope 0: rotated is 9, must be even"),
        ("model.ropes.0.factors", [1.0], "1 RoPE factors"),
        ("model.ropes.0.factors", ["a"], "null or a list"),
        ("model.extra", 1, "extra"),
    ],
)
def test_wrong_config(packed: Path, tmp_path: Path, key: str, value: Any, says: str) -> None:
    config = json.loads((packed / "config.json").read_text())
    place = config["quantization_config"]
    *path, last = key.split(".")
    for step in path:
        place = place[int(step) if step.isdecimal() else step]
    place[int(last) if last.isdecimal() else last] = value
    folder = copy(packed, tmp_path / "m", "config.json", json.dumps(config).encode())
    error = error_of(folder)
    assert error is not None
    assert says in error


def first_version(config: ModelConfig) -> dict[str, Any]:
    """The model object of version 1, in which all layers were alike."""
    attention, rope = config.layers[0].attention, config.ropes[0]
    ffn = config.layers[0].ffn
    shared = ("architecture", "hidden_size", "vocab_size", "context_length", "rms_norm_eps")
    return {name: getattr(config, name) for name in (*shared, "tied_embeddings", "n_layers")} | {
        "ffn_size": ffn.size,
        "n_heads": attention.n_heads,
        "n_kv_heads": attention.n_kv_heads,
        "head_dim": attention.head_dim,
        "rope_theta": rope.theta,
        "rope_factors": rope.factors,
        "sliding_window": attention.window,
        "qkv_bias": attention.qkv_bias,
        "qk_norm": attention.qk_norm == "head",
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_version_is_read(tmp_path: Path, family: str) -> None:
    with open_checkpoint(write_gguf(tmp_path / "m.gguf", FAMILIES[family])) as source:
        folder = pack(source, tmp_path / "packed")
        config = json.loads((folder / "config.json").read_text())
        first = first_version(source.config)
        config["quantization_config"] |= {"version": 1, "model": first}
        (folder / "config.json").write_text(json.dumps(config))
        with open_checkpoint(folder) as found:
            assert found.config == source.config
    for change in ({"n_layers": 10**6}, {"rope_factors": [1.0]}, {"ffn": 1}):
        config["quantization_config"]["model"] = first | change
        (folder / "config.json").write_text(json.dumps(config))
        assert next(iter(change)).replace("rope_factors", "1 RoPE") in str(error_of(folder))


def test_failed_write_leaves_nothing(packed: Path, tmp_path: Path) -> None:
    with open_checkpoint(packed) as source:
        broken = dataclasses.replace(source.tokenizer, gguf={"tokenizer.x": object()})
        source.tokenizer = broken
        with pytest.raises(TypeError):
            pack(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_full_is_told_with_the_file():
    full = Path("/dev/full")
    for write in (
        lambda: write_blocks(full, [memoryview(b"a")]),
        lambda: write_json(full, {"a": "b" * 100_000}),
        lambda: write_all(os.open(full, os.O_WRONLY), memoryview(b"a"), 0, full),
    ):
        with pytest.raises(OSError, match="No space left") as caught:
            write()
        assert caught.value.filename == "/dev/full"
