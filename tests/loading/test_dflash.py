"""DFlash heads: what does not fit its model or computes more is refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_heads import BLOCK, MASK, head_arrays, write_file, write_head
from family_models import family_model, write_case
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.drafting_heads import Blocks
from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime.targets import target_types

TAPS = (0, 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case("qwen3", tmp_path_factory.mktemp("m") / "model")


def opened(model: Path, folder: Path, **changes: Any) -> Any:
    arrays = changes.pop("arrays", None) or head_arrays(64, 2)
    taps = changes.pop("taps", TAPS)
    return open_checkpoint(model, head=write_head(folder / "head", arrays, taps, **changes))


def test_a_head_is_no_model(tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", head_arrays(64, 2), TAPS)
    with pytest.raises(ModelFileError, match="give the model, and this as its draft"):
        open_checkpoint(head)


def test_its_layers_are_the_last_ones(model: Path, tmp_path: Path) -> None:
    with open_checkpoint(model) as plain, opened(model, tmp_path) as found:
        config = found.config
        assert config.layers[:-2] == plain.config.layers
        assert [layer.follows for layer in config.layers[-2:]] == [False, True]
        assert (config.has_mtp, config.n_head_layers, config.has_states) == (True, 2, False)
        assert config.blocks == Blocks((1, 2), float(np.float32(1e-5)), BLOCK, MASK)
        assert all(layer.attention.sees_ahead for layer in config.layers[-2:])
        assert found.tensors[: len(plain.tensors)] == plain.tensors
        found.weights_name = "q4_0"
        kinds = zip(found.tensors, target_types(found, None), strict=True)
        assert {one.layer for one, kind in kinds if kind is TensorType.Q8_0} == {2, 3}


@pytest.mark.parametrize(
    ("changes", "taps"),
    [
        ({}, (0, 3)),
        ({"section": {"target_layer_ids": None}, "target_layer_ids": [2, 2]}, (2, 2)),
        ({"section": {"target_layer_ids": None}}, (1, 4)),
    ],
)
def test_layers_that_are_read(tmp_path: Path, changes: dict[str, Any], taps: tuple[int]) -> None:
    model = write_case("gemma3", tmp_path / "model")
    with opened(model, tmp_path, taps=(0, 3), **changes) as found:
        assert found.config.blocks.taps == tuple(tap + 1 for tap in taps)
        # The reference reads the model's embeddings as the model does.
        assert found.config.blocks.embedding_scale == found.config.embedding_scale != 1


def test_a_copy_of_the_models_embedding_is_left_out(model: Path, tmp_path: Path) -> None:
    arrays = head_arrays(64, 2)
    own = family_model("qwen3").tensors["model.embed_tokens.weight"]
    for name, is_own in (("copy", False), ("own", True)):
        more = arrays | {"embed_tokens.weight": own + np.float32(is_own)}
        with opened(model, tmp_path / name, arrays=more) as found:
            assert found.config.blocks.own_embedding == is_own


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrays": head_arrays(32, 2)}, "hidden_size is 32; 64 is needed, as of"),
        ({"vocab": 512}, "vocab_size is 512; 256 is needed"),
        ({"taps": (0, 2)}, "the head reads rows behind layer 2, of 0 to 1 of"),
        ({"taps": (0, 1, 1)}, "has shape [64, 128] (outputs first); the config needs [64, 192]"),
        ({"num_target_layers": 36}, "num_target_layers is 36; the 2 layers of"),
        ({"section": {"mask_token_id": 256}}, "mask_token_id is 256; a token below 256"),
        ({"section": {"mask_token_id": None}}, "mask_token_id is None; a whole number"),
        ({"section": {"target_layer_ids": "x"}}, "target_layer_ids is 'x'; a list of numbers"),
        ({"section": {"use_swa": True}}, "use_swa is True; a head without it"),
        ({"section": {"conv_kernel_size": 4}}, "conv_kernel_size is 4; a head without it"),
        ({"block_size": 65}, "block_size is 65; at most 64 is needed"),
        ({"taps": (0, 1) * 9, "arrays": head_arrays(64, 18)}, "n_taps is 18, must be 0 to 16"),
        ({"block_size": 1}, "block_size is 1; a whole number from 2"),
        ({"rope_is_neox_style": False}, "rope_is_neox_style is False; true is needed"),
        ({"architectures": ["DFlash2DraftModel"]}, "architectures is ['DFlash2DraftModel']; ["),
        ({"architectures": ["Qwen3DSparkModel"]}, "architectures is ['Qwen3DSparkModel']; ["),
        ({"transformer_layer_config": {}}, "transformer_layer_config is {}; the layout"),
        (
            {
                "layer_types": ["sliding_attention"] * 2,
                "use_sliding_window": True,
                "sliding_window": 4,
            },
            "sliding_window is 4; at least the size of a block, 8,",
        ),
    ],
)
def test_heads_of_other_models_and_kinds_are_refused(
    model: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFileError, match=re.escape(message)) as raised:
        opened(model, tmp_path, **changes)
    assert str(tmp_path / "head") in str(raised.value)


def test_a_mask_of_its_own_and_unknown_tensors_are_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"mask_embedding\.pt: a mask with an embedding"):
        opened(model, tmp_path)
    arrays = head_arrays(64, 2)
    more = arrays | {"layers.0.attn_conv_base": np.ones((4, 64), np.float32)}
    with pytest.raises(ModelFileError, match=r"unknown tensor 'model\.layers\.2\.attn_conv_base'"):
        opened(model, tmp_path / "more", arrays=more)
    del arrays["hidden_norm.weight"]
    with pytest.raises(ModelFileError, match=r"missing tensor 'model\.layers\.2\.hnorm\.weight'"):
        opened(model, tmp_path / "fewer", arrays=arrays)


@pytest.mark.parametrize(
    ("width", "more", "message"),
    [
        (32, {}, r"dflash\.embedding_length is 32; 64 is needed"),
        (64, {"selector_rank": 4}, r"dflash\.selector_rank is 4; a file without it"),
    ],
)
def test_gguf_files_of_others_are_refused(
    model: Path, tmp_path: Path, width: int, more: dict[str, int], message: str
) -> None:
    file = write_file(tmp_path / "head.gguf", head_arrays(width, 2), TAPS, **more)
    with pytest.raises(ModelFileError, match=message):
        open_checkpoint(model, head=file)
