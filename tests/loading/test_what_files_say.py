"""Configs against weights, fields that change nothing, wrappers, files in parts or of others."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hub_server import Hub, serve
from safetensors.numpy import load_file, save_file
from test_hub import resolve

from family_gguf import write_gguf
from family_models import family_model, write_case
from gguf_values import split_gguf, write_out
from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.checkpoints.opening import open_checkpoint
from published_configs import VOCAB

LLAMA = "llama"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def error_of(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(path)
    return str(caught.value)


def program_of(name: str, folder: Path, **changes: Any) -> ModelConfig:
    """What a case's directory says, apart from what a test is about."""
    with open_checkpoint(write_case(name, folder / "plain", **changes)) as checkpoint:
        return checkpoint.config


def change_tensors(folder: Path, **changes: np.ndarray | None) -> Path:
    """Put tensors into the weights, or take them out; names have _ for the dots."""
    arrays = load_file(folder / "model.safetensors")
    for name, array in changes.items():
        key = {"head": HEAD, "embedding": EMBEDDING}[name]
        arrays.pop(key, None)
        if array is not None:
            arrays[key] = array
    save_file(arrays, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("is_copy", [True, False])
def test_a_head_beside_tied_embeddings_is_used_unless_it_is_a_copy(
    is_copy: bool, tmp_path: Path
) -> None:
    folder = write_case(LLAMA, tmp_path / "hf", tie_word_embeddings=True)
    arrays = load_file(folder / "model.safetensors")
    head = arrays[EMBEDDING].copy()
    if not is_copy:
        head[-1, -1] += 1
    with open_checkpoint(change_tensors(folder, head=head)) as checkpoint:
        assert checkpoint.config.tied_embeddings == is_copy
        assert (Role.OUTPUT in {tensor.role for tensor in checkpoint.tensors}) != is_copy


@pytest.mark.parametrize("says_tied", [True, False])
def test_a_head_alone_is_the_embedding_too(says_tied: bool, tmp_path: Path) -> None:
    folder = write_case(LLAMA, tmp_path / "hf", tie_word_embeddings=says_tied)
    head = load_file(folder / "model.safetensors")[HEAD]
    with open_checkpoint(change_tensors(folder, embedding=None)) as checkpoint:
        assert checkpoint.config.tied_embeddings
        (embedding,) = [t for t in checkpoint.tensors if t.role == Role.TOKEN_EMBEDDING]
        assert bytes(embedding.data) == head.tobytes()


def test_a_head_that_is_missing_and_not_the_embedding_is_named(tmp_path: Path) -> None:
    folder = write_case(LLAMA, tmp_path / "hf")
    assert "missing tensor 'lm_head.weight'" in error_of(change_tensors(folder, head=None))


def test_fields_that_change_nothing_are_passed_over(tmp_path: Path) -> None:
    """Those of published configs, and neutral values."""
    harmless = {
        "_name_or_path": "x",
        "architectures": ["LlamaForCausalLM"],
        "attention_dropout": 0.0,
        "auto_map": {},
        "bos_token_id": 1,
        "eos_token_id": [1, 2],
        "initializer_range": 0.02,
        "is_llama_config": True,
        "layer_types": ["full_attention", "full_attention"],
        "logits_scaling": 1.0,
        "partial_rotary_factor": 1.0,
        "pretraining_tp": 1,
        "resid_pdrop": 0.0,
        "rope_interleaved": False,
        "sliding_window": None,
        "torch_dtype": "bfloat16",
        "transformers.js_config": {},
        "transformers_version": "5.0.0",
        "unsloth_version": "2026.1",
        "use_cache": True,
    }
    with open_checkpoint(write_case(LLAMA, tmp_path / "hf", **harmless)) as checkpoint:
        assert checkpoint.config == program_of(LLAMA, tmp_path)


def test_what_gemma2_leaves_out_is_what_the_reference_takes(tmp_path: Path) -> None:
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    said = write_case("gemma2", tmp_path / "said", **caps)
    unsaid = write_case("gemma2", tmp_path / "unsaid", **caps)
    config = json.loads((unsaid / "config.json").read_text())
    for name in caps:
        del config[name]
    (unsaid / "config.json").write_text(json.dumps(config))
    with open_checkpoint(said) as one, open_checkpoint(unsaid) as other:
        assert one.config == other.config
        assert one.config.layers[0].attention.score_softcap == 50.0


def test_layer_types_that_say_something_else_are_refused(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    error = error_of(write_case(LLAMA, tmp_path / "hf", layer_types=kinds))
    assert "layer_types is ['sliding_attention', 'full_attention']" in error


def test_keys_that_change_nothing_are_passed_over(tmp_path: Path) -> None:
    harmless = {
        "attention.causal": True,
        "expert_count": 0,
        "expert_used_count": 0,
        "final_logit_softcapping": 0.0,
        "logit_scale": 1.0,
        "pooling_type": 0,
        "rope.scaling.finetuned": False,
        "rope.scaling.type": "none",
    }
    with open_checkpoint(
        write_gguf(family_model(LLAMA), tmp_path / "m.gguf", harmless)
    ) as checkpoint:
        assert checkpoint.config == program_of(LLAMA, tmp_path)


def test_a_factor_of_rope_without_a_type_is_linear(tmp_path: Path) -> None:
    path = write_gguf(family_model(LLAMA), tmp_path / "m.gguf", {"rope.scaling.factor": 4.0})
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.config.ropes[0].factors == (4.0,) * 8


@pytest.mark.parametrize("pattern", [[True, False], 2])
def test_a_pattern_of_windows(pattern: Any, tmp_path: Path) -> None:
    keys = {"attention.sliding_window": 32, "attention.sliding_window_pattern": pattern}
    with open_checkpoint(write_gguf(family_model(LLAMA), tmp_path / "m.gguf", keys)) as checkpoint:
        assert [layer.attention.window for layer in checkpoint.config.layers] == [32, None]


WRAPPERS = {
    "language_model.": ("language_model.", "language_model."),
    "model.language_model.": ("model.language_model.", ""),
}


@pytest.mark.parametrize("style", WRAPPERS)
@pytest.mark.parametrize("inner", ["ministral3", "mistral"])
def test_the_language_model_of_a_multimodal_one(
    style: str, inner: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {"sliding_window": None}
    folder = write_case(inner, tmp_path / "hf", **changes)
    text = json.loads((folder / "config.json").read_text()) | {"model_type": inner}
    del text["tie_word_embeddings"]
    config = {"model_type": "mistral3", "text_config": text, "vision_config": {"depth": 4}}
    (folder / "config.json").write_text(json.dumps(config | {"image_token_index": 10}))
    arrays = load_file(folder / "model.safetensors")
    body, head = WRAPPERS[style]
    wrapped = {
        (body + n.removeprefix("model.") if style.startswith("model.") else body + n)
        if n != HEAD
        else head + n: array
        for n, array in arrays.items()
    }
    towers = ("audio_tower.conv.weight", "model.multi_modal_projector.linear_1.weight")
    save_file(wrapped | dict.fromkeys(towers, np.zeros(4, "f4")), folder / "model.safetensors")
    with caplog.at_level(logging.INFO), open_checkpoint(folder) as checkpoint:
        assert checkpoint.config.layers == program_of(inner, tmp_path, **changes).layers
        assert checkpoint.config.architecture == inner
        assert not checkpoint.config.tied_embeddings
    assert "2 tensors of images or sound are left out" in caplog.text


def write_split(folder: Path, name: str, count: int) -> list[Path]:
    """The parts of a GGUF file, as the public tools split one."""
    folder.mkdir()
    return split_gguf(write_gguf(family_model(name), folder / "m.gguf"), count)


def test_a_file_in_parts_is_opened_by_any_of_them(tmp_path: Path) -> None:
    with open_checkpoint(write_case("qwen3_moe", tmp_path / "hf")) as checkpoint:
        expected, count = checkpoint.config, len(checkpoint.tensors)
    paths = write_split(tmp_path / "m", "qwen3_moe", 3)
    for path in paths[:2]:
        with open_checkpoint(path) as checkpoint:
            assert checkpoint.config == expected
            assert checkpoint.name == "m"
            assert len(checkpoint.tensors) == count
    paths[2].unlink()
    assert "m-00003-of-00003.gguf must lie beside it" in error_of(paths[0])
    paths[1].rename(paths[2])
    paths[2].write_bytes(paths[0].read_bytes())
    paths[1].write_bytes(paths[0].read_bytes())
    assert "split.no is 0; 1 of 3" in error_of(paths[0])
    alone = paths[0].rename(tmp_path / "alone.gguf")
    assert "split.count is 3; 1, as the file's name says" in error_of(alone)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("adapter", "this is a LoRA adapter"),
        ("imatrix", "this is an importance matrix"),
        ("mmproj", "the part of a model that sees or hears"),
    ],
)
def test_gguf_files_that_are_no_models_say_what_they_are(
    kind: str, says: str, tmp_path: Path
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "clip" if kind == "mmproj" else "llama")
    writer.add_type(kind)
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.zeros((4, 32), np.float32))
    write_out(writer)
    assert says in error_of(tmp_path / "m.gguf")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4920734272\n"


@pytest.mark.parametrize("name", ["m.gguf", "model.safetensors", "config.json"])
def test_pointers_of_git_lfs_are_called_so(name: str, tmp_path: Path) -> None:
    path = write_case(LLAMA, tmp_path / "hf")
    (path / name).write_bytes(POINTER)
    error = error_of(path / name if name == "m.gguf" else path)
    assert "a pointer of Git LFS" in error
    assert "git lfs pull" in error


def test_an_adapter_given_as_a_model_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "found adapter_config.json: this is a LoRA adapter" in error_of(tmp_path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mamba2", "layers with a recurrent state"),
        ("t5", "it is an encoder-decoder model"),
    ],
)
def test_families_that_are_not_supported_say_why(name: str, reason: str, tmp_path: Path) -> None:
    error = error_of(write_case(LLAMA, tmp_path / "hf", model_type=name))
    assert f"model_type {name!r} is not supported: " in error
    assert reason in error
    assert "accepted are llama, " in error


def test_the_family_is_checked_before_the_weights_are_fetched(tmp_path: Path) -> None:
    with serve(Hub()) as hub:
        folder = write_case(LLAMA, tmp_path / "hf", model_type="mamba2")
        hub.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        done = resolve("org/name", hub, tmp_path / "home")
        assert done.returncode != 0
        assert "model_type 'mamba2' is not supported" in done.stderr
        assert {name for name, _ in hub.downloads()} == {"config.json"}


def test_the_family_of_a_gguf_file_is_checked_before_it_is_fetched(tmp_path: Path) -> None:
    with serve(Hub()) as hub:
        path = write_gguf(family_model("seed_oss"), tmp_path / "m.gguf")
        content = path.read_bytes().replace(b"seed_oss", b"nosuch07", 1)
        assert content != path.read_bytes()
        hub.files = {"m.gguf": content.ljust(17 << 20, b"\0")}
        done = resolve("org/name:m.gguf", hub, tmp_path / "home")
        assert done.returncode != 0
        assert "org/name:m.gguf: general.architecture 'nosuch07' is not supported" in done.stderr
        assert hub.downloads() == [("m.gguf", "bytes=0-65535")]


def test_all_parts_of_a_file_are_fetched(tmp_path: Path) -> None:
    with serve(Hub()) as hub:
        paths = write_split(tmp_path / "m", "seed_oss", 2)
        hub.files = {path.name: path.read_bytes() for path in paths} | {"other.gguf": b"unwanted"}
        done = resolve(f"org/name:{paths[0].name}", hub, tmp_path / "home")
        assert done.returncode == 0, done.stderr
        with open_checkpoint(Path(done.stdout.strip())) as checkpoint:
            assert checkpoint.config.vocab_size == VOCAB
        assert {name for name, _ in hub.downloads()} == {path.name for path in paths}
