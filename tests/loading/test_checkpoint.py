"""Checkpoints: GGUF files and directories of one model give the same config and tensors."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from model_files import (
    FAMILIES,
    HEAD_DIM,
    N_HEADS,
    N_KV_HEADS,
    TinyModel,
    gguf_name,
    write_directory,
    write_gguf,
)

import topics
from data_files import data
from gguf_values import interleave
from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.opening import open_checkpoint


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_and_directory_of_one_model_have_the_same_config(family: str, tmp_path: Path) -> None:
    model = FAMILIES[family]
    directory = write_directory(tmp_path / "hf", model)
    file = write_gguf(tmp_path / "m.gguf", model)
    with open_checkpoint(directory) as a, open_checkpoint(file) as b:
        name = a.config.architecture
        assert name == model.model_type
        assert b.config.architecture == {"mistral": "llama"}.get(name, name)
        fields = set(vars(a.config)) - {"architecture"}
        assert {f: getattr(a.config, f) for f in fields} == {
            f: getattr(b.config, f) for f in fields
        }
        assert a.config.tied_embeddings == model.tied
        attention = a.config.layers[0].attention
        assert attention.qkv_bias == model.bias
        assert attention.qk_norm == ("head" if model.head_norms else "none")
        assert attention.head_dim == HEAD_DIM
        assert a.weights_name == b.weights_name == "f32"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_holds_its_own_bytes(family: str, tmp_path: Path) -> None:
    model = FAMILIES[family]
    expected = model.tensors()
    with (
        open_checkpoint(write_directory(tmp_path / "hf", model)) as hf,
        open_checkpoint(write_gguf(tmp_path / "m.gguf", model)) as gg,
    ):
        by_name = {gguf_name(name): array for name, array in expected.items()}
        assert {t.name for t in hf.tensors} == set(expected)
        assert {t.name for t in gg.tensors} == set(by_name)
        assert [(t.role, t.layer) for t in hf.tensors] == [(t.role, t.layer) for t in gg.tensors]
        for tensor in hf.tensors:
            found = np.frombuffer(tensor.data, np.float32).reshape(tensor.rows, tensor.cols)
            np.testing.assert_array_equal(found, np.atleast_2d(expected[tensor.name]))
            assert tensor.rope_heads == 0
        for tensor in gg.tensors:
            want = by_name[tensor.name]
            if tensor.rope_heads:
                want = interleave(want, tensor.rope_heads)
            found = np.frombuffer(tensor.data, np.float32).reshape(tensor.rows, tensor.cols)
            np.testing.assert_array_equal(found, np.atleast_2d(want))
            assert tensor.data.readonly


def test_llama_gguf_marks_interleaved_rows(tmp_path: Path) -> None:
    model = TinyModel("llama", bias=True)
    with open_checkpoint(write_gguf(tmp_path / "m.gguf", model)) as checkpoint:
        heads = {tensor.role: tensor.rope_heads for tensor in checkpoint.tensors}
    assert {role: n for role, n in heads.items() if n} == {
        Role.ATTN_Q: N_HEADS,
        Role.ATTN_K: N_KV_HEADS,
        Role.ATTN_Q_BIAS: N_HEADS,
        Role.ATTN_K_BIAS: N_KV_HEADS,
    }


def test_sharded_directory_equals_single_file(tmp_path: Path) -> None:
    model = FAMILIES["llama"]
    with (
        open_checkpoint(write_directory(tmp_path / "one", model)) as one,
        open_checkpoint(write_directory(tmp_path / "many", model, shards=3)) as many,
    ):
        assert one.config == many.config
        assert [t.name for t in one.tensors] == [t.name for t in many.tensors]
        for a, b in zip(one.tensors, many.tensors, strict=True):
            assert bytes(a.data) == bytes(b.data)


def test_quantized_matrices_keep_their_blocks(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf",
        TinyModel("llama", extra_config={"hidden_size": 48}),
        quantize=gguf.GGMLQuantizationType.Q8_0,
    )
    with open_checkpoint(path) as checkpoint:
        down = next(t for t in checkpoint.tensors if t.role == Role.FFN_DOWN)
        assert down.type == TensorType.Q8_0
        assert len(down.data) == down.rows * down.cols // 32 * 34


def test_released_pages_read_the_same_again(tmp_path: Path) -> None:
    with open_checkpoint(write_gguf(tmp_path / "m.gguf", FAMILIES["llama"])) as checkpoint:
        before = [bytes(tensor.data) for tensor in checkpoint.tensors]
        for tensor in checkpoint.tensors:
            tensor.release()
        assert [bytes(tensor.data) for tensor in checkpoint.tensors] == before
    for tensor in checkpoint.tensors:
        tensor.release()  # after close: nothing to do, and no harm


def test_release_drops_resident_pages(tmp_path: Path) -> None:
    size = 4096 * 1024
    model = TinyModel("llama", tied=True, extra_config={"vocab_size": size // 4 // 48})
    tensors = model.tensors()
    tensors["model.embed_tokens.weight"] = np.ones((size // 4 // 48, 48), np.float32)
    model.tensors = lambda: tensors  # type: ignore[method-assign]
    with open_checkpoint(write_directory(tmp_path / "hf", model)) as checkpoint:
        embedding = checkpoint.tensors[0]
        before = resident_file_pages()
        assert sum(embedding.data[3::4096]) > 0
        touched = resident_file_pages()
        embedding.release()
        after = resident_file_pages()
    assert touched - before > size // 2
    assert touched - after > size // 2


def resident_file_pages() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssFile:"):
            return int(line.split()[1]) * 1024
    return topics.skip("machine", "this kernel does not report RssFile")


def test_closing_while_somebody_reads_leaves_the_memory_valid(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", FAMILIES["llama"]))
    array = np.frombuffer(checkpoint.tensors[0].data, np.float32)
    total = array.sum()
    checkpoint.close()
    assert array.sum() == total


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (TinyModel("mistral", extra_config={"sliding_window": 64}), 64),
        (TinyModel("mistral", extra_config={"sliding_window": None}), None),
        (TinyModel("mistral"), 4096),
        (TinyModel("qwen2", bias=True, extra_config={"sliding_window": 64}), None),
        (
            TinyModel(
                "qwen2",
                bias=True,
                extra_config={
                    "sliding_window": 64,
                    "use_sliding_window": True,
                    "max_window_layers": 0,
                },
            ),
            64,
        ),
        (TinyModel("llama", extra_config={"sliding_window": 64}), None),
    ],
)
def test_sliding_window(model: TinyModel, expected: int | None, tmp_path: Path) -> None:
    with open_checkpoint(write_directory(tmp_path / "hf", model)) as checkpoint:
        assert checkpoint.config.sliding_window == expected


def test_sliding_window_of_a_gguf(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", FAMILIES["mistral"], {"llama.attention.sliding_window": 64}
    )
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.config.sliding_window == 64


@pytest.mark.parametrize(
    ("name", "file"), [("stories260K-hf", "stories260K-f32"), ("stories3M-hf", "stories3M-f16")]
)
def test_trained_models_agree_between_files(name: str, file: str) -> None:
    paths = data(f"models/{name}"), data(f"models/{file}.gguf")
    with open_checkpoint(paths[0]) as a, open_checkpoint(paths[1]) as b:
        assert a.config == b.config
        assert [(t.role, t.layer, t.rows, t.cols) for t in a.tensors] == [
            (t.role, t.layer, t.rows, t.cols) for t in b.tensors
        ]


def test_hub_snapshot_is_named_after_its_repository(tmp_path: Path) -> None:
    folder = tmp_path / "models--some-org--some--name" / "snapshots" / "0123abcd"
    with open_checkpoint(write_directory(folder, FAMILIES["llama"])) as checkpoint:
        assert checkpoint.name == "some-org/some--name"
