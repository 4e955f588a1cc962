"""Damage of every kind to every file of a model: the only exception is ModelFileError."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import FAMILIES, error_of, write_directory, write_gguf

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", FAMILIES["qwen3"])
    return path.read_bytes()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_directory(tmp_path_factory.mktemp("hf"), FAMILIES["qwen3"], shards=2)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def test_gguf_truncated_anywhere_is_refused(gguf_bytes: bytes, scratch: Path) -> None:
    path = scratch / "truncated.gguf"
    lengths = random.Random(1).sample(range(len(gguf_bytes) - 1), 100)
    for length in [*range(100), *lengths, len(gguf_bytes) - 1]:
        path.write_bytes(gguf_bytes[:length])
        with pytest.raises(ModelFileError, match=r"truncated\.gguf"):
            open_checkpoint(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_gguf_with_changed_bytes(gguf_bytes: bytes, scratch: Path, data: st.DataObject) -> None:
    damaged = bytearray(gguf_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 3500))  # the header; the rest is weights
        damaged[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    path = scratch / "changed.gguf"
    path.write_bytes(damaged)
    error = error_of(path)
    assert error is None or "changed.gguf" in error


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_safetensors_with_changed_bytes(
    directory: Path, scratch: Path, data: st.DataObject
) -> None:
    copy = scratch / "changed"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    file = sorted(copy.glob("*"))[data.draw(st.integers(0, 3))]
    damaged = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(damaged) - 1, 2000)))
        damaged[at] = data.draw(st.sampled_from(b'09-"{}[],.e\\') | st.integers(0, 255))
    file.write_bytes(damaged)
    error = error_of(copy)
    assert error is None or str(copy) in error


def test_safetensors_truncated_anywhere_is_refused(directory: Path, scratch: Path) -> None:
    copy = scratch / "truncated"
    shutil.copytree(directory, copy)
    file = copy / "model-00001-of-00002.safetensors"
    content = file.read_bytes()
    for length in [*range(12), *random.Random(2).sample(range(len(content)), 60)]:
        file.write_bytes(content[:length])
        with pytest.raises(ModelFileError, match="00001-of-00002"):
            open_checkpoint(copy)


def rewrite_header(file: Path, change: object) -> None:
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    change(header)  # type: ignore[operator]
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h[NORM].update(shape=[24, 2]), "has shape [24, 2] (outputs first); the config"),
        (lambda h: h[NORM].update(shape=[47]), "shape [47] of F32 takes 188 bytes"),
        (lambda h: h[NORM].update(shape=[-48]), "is not a list of sizes"),
        (lambda h: h[NORM].update(shape="48"), "is not a list of sizes"),
        (lambda h: h[NORM].update(dtype="I32"), "has type I32; accepted are F32, F16"),
        (lambda h: h[NORM].update(dtype=4), "dtype 4 is not a string"),
        (lambda h: h[NORM].update(data_offsets=[192, 0]), "is not [start, end]"),
        (lambda h: h[NORM].update(data_offsets=[0]), "is not [start, end]"),
        (
            lambda h: h[NORM].update(data_offsets=[10**9, 10**9 + 192]),
            "end beyond the file's",
        ),
        (lambda h: h[NORM].update(data_offsets=[4, 196]), "overlaps"),
        (lambda h: h.update({NORM: None}), "the entry is None"),
        (lambda h: h.pop(NORM), "missing tensor 'model.norm.weight'"),
        (
            lambda h: h.update({"model.extra": h.pop(NORM) | {"shape": [48]}}),
            "missing tensor 'model.norm.weight'",
        ),
    ],
)
def test_broken_safetensors_headers_are_explained(
    tmp_path: Path, change: object, message: str
) -> None:
    directory = write_directory(tmp_path / "hf", FAMILIES["llama"])
    rewrite_header(directory / "model.safetensors", change)
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(directory)
    assert message in str(caught.value)


def test_extra_tensor_is_named(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "hf", FAMILIES["llama"])
    rewrite_header(
        directory / "model.safetensors",
        lambda h: h.update(
            {"score.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}
        ),
    )
    with pytest.raises(ModelFileError, match=r"unknown tensor 'score\.weight'"):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "gpt9"}, "model_type 'gpt9' is not supported; accepted are llama, "),
        ({"model_type": None}, "model_type is None; a string is needed"),
        ({"hidden_size": "48"}, "hidden_size is '48'; a whole number from 1"),
        ({"hidden_size": 48.0}, "hidden_size is 48.0"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_key_value_heads": 3}, "not a multiple of 3 key/value heads"),
        ({"head_dim": 15}, "head dimension 15 is not supported"),
        ({"head_dim": 514}, "head dimension 514 is not supported"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1; a positive finite number"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; 'silu' is needed"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quant_method 'hqq' is not supported"),
        ({"quantization_config": "awq"}, "quantization_config is 'awq'; an object is needed"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; true or false"),
        ({"vocab_size": 97}, "tensor 'model.embed_tokens.weight' has shape [96, 48]"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; an object or null"),
        (
            {"rope_scaling": {"rope_type": "ntk", "factor": 2}},
            "rope_type 'ntk' is not supported; accepted are default, dynamic, linear",
        ),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"partial_rotary_factor": 0.05}, "partial_rotary_factor is 0.05"),
        ({"partial_rotary_factor": 2}, "partial_rotary_factor is 2"),
    ],
)
def test_unusable_configs_are_explained(
    tmp_path: Path, config: dict[str, object], message: str
) -> None:
    directory = write_directory(tmp_path / "hf", FAMILIES["llama"])
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(directory)
    assert message in str(caught.value)
    assert str(directory) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "a list, where a JSON object is needed"),
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b"[" * 100_000, "config.json: "),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_bad_json_is_explained(tmp_path: Path, name: str, text: bytes, message: str) -> None:
    directory = write_directory(tmp_path / "hf", FAMILIES["llama"])
    (directory / name).write_bytes(text)
    with pytest.raises(ModelFileError, match=name) as caught:
        open_checkpoint(directory)
    assert message.removeprefix("config.json: ") in str(caught.value)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({}, "weight_map is missing"),
        ({"w": "../../etc/passwd"}, "is not a plain file name"),
        ({"w": 3}, "is not a plain file name"),
        ({"w": "gone.safetensors"}, "gone.safetensors: cannot be read: No such file"),
    ],
)
def test_broken_shard_index_is_explained(
    tmp_path: Path, weight_map: dict[str, object], message: str
) -> None:
    directory = write_directory(tmp_path / "hf", FAMILIES["llama"], shards=2)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(directory)
    assert message in str(caught.value)


def test_missing_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file or directory"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(ModelFileError, match=r"config\.json is missing"):
        open_checkpoint(tmp_path)
    (tmp_path / "a.gguf").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"found a\.gguf; to serve a GGUF file"):
        open_checkpoint(tmp_path)
    directory = write_directory(tmp_path / "hf", FAMILIES["llama"])
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match="must be converted to safetensors"):
        open_checkpoint(directory)


def test_unreadable_file_is_explained(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as endpoint:  # exists, but cannot be opened
        endpoint.bind(str(tmp_path / "m.sock"))
        with pytest.raises(ModelFileError, match=r"m\.sock: cannot be read: "):
            open_checkpoint(tmp_path / "m.sock")
    if os.geteuid() != 0:  # root reads every file
        path = write_gguf(tmp_path / "m.gguf", FAMILIES["llama"])
        path.chmod(0)
        with pytest.raises(ModelFileError, match="cannot be read: Permission denied"):
            open_checkpoint(path)


def test_device_and_odd_paths_are_explained(tmp_path: Path) -> None:
    for path in (Path("/dev/null"), Path("nul\0byte"), Path("x" * 5000)):
        with pytest.raises(ModelFileError):
            open_checkpoint(path)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(ModelFileError):
        open_checkpoint(loop)
