"""EAGLE-3 heads: what does not fit its model or is of another kind is refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3_heads import IDS, head_arrays, write_file, write_head
from family_models import family_model, write_case
from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.drafts import read_draft, read_head
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime.targets import target_types

TAPS = (1, 2, 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case("llama", tmp_path_factory.mktemp("m") / "model")


def opened(model: Path, folder: Path, **changes: Any) -> Any:
    arrays = changes.pop("arrays", None) or head_arrays(64, 256, 90)
    taps = changes.pop("taps", TAPS)
    return open_checkpoint(model, head=write_head(folder / "head", arrays, taps, **changes))


def test_what_a_draft_names(model: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", head_arrays(64, 256, 90), TAPS)
    assert (read_draft(None).model, read_draft("mtp").mtp) == (None, True)
    assert (read_draft(str(head)).head, read_draft(str(model)).model) == (head, model)
    assert read_head(str(head)).head == head
    with pytest.raises(ModelFileError, match="a model of its own, which only serving can guess"):
        read_head(str(model))


def test_a_head_is_no_model(tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", head_arrays(64, 256, 90), TAPS)
    with pytest.raises(ModelFileError, match="give the model, and this as its draft"):
        open_checkpoint(head)


def test_a_head_is_the_last_layer(model: Path, tmp_path: Path) -> None:
    with open_checkpoint(model) as plain, opened(model, tmp_path) as found:
        assert found.config.layers[:-1] == plain.config.layers
        assert found.config.has_mtp
        assert found.config.layers[-1].head.taps == TAPS
        assert found.tensors[: len(plain.tensors)] == plain.tensors
        assert found.files == (model, tmp_path / "head")


def test_layers_that_nobody_names_are_the_usual_ones(tmp_path: Path) -> None:
    model = write_case("gemma3", tmp_path / "model")
    config = {"eagle_config": None}
    with opened(model, tmp_path, **config) as found:
        assert found.config.layers[-1].head.taps == (2, 3, 4)


def test_a_copy_of_the_models_embedding_is_left_out(model: Path, tmp_path: Path) -> None:
    arrays = head_arrays(64, 256, 90, embedding=True)
    with opened(model, tmp_path / "own", arrays=arrays) as found:
        assert found.config.layers[-1].head.own_embedding
    arrays["embed_tokens.weight"] = family_model("llama").tensors["model.embed_tokens.weight"]
    with opened(model, tmp_path / "copy", arrays=arrays) as found:
        assert not found.config.layers[-1].head.own_embedding


def test_a_head_beside_quantized_weights_is_held_in_8_bits(model: Path, tmp_path: Path) -> None:
    with opened(model, tmp_path) as found:
        assert set(target_types(found, None)) == {TensorType.F32}
        found.weights_name = "q4_0"
        kinds = dict(zip(found.tensors, target_types(found, None), strict=True))
    of_head = {one.role for one, kind in kinds.items() if kind is TensorType.Q8_0}
    assert of_head >= {Role.HEAD_FUSION, Role.HEAD_OUTPUT, Role.ATTN_Q, Role.FFN_DOWN}
    assert {one.layer for one, kind in kinds.items() if kind is TensorType.Q8_0} == {2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrays": head_arrays(32, 256, 90)}, "hidden_size is 32; 64 is needed, as of"),
        ({"target_hidden_size": 128}, "target_hidden_size is 128; 64 is needed"),
        ({"vocab": 512}, "vocab_size is 512; 256 is needed"),
        ({"taps": (1, 2, 5)}, "rows in front of layer 5; 1 to 2 are needed, as of"),
        ({"eagle_config": {IDS: [1, 2]}}, f"eagle_config: {IDS} is [1, 2]; three numbers"),
        (
            {"eagle_config": {"use_aux_hidden_state": False}},
            "use_aux_hidden_state is False; true is needed",
        ),
        ({"norm_output": True}, "norm_output is True; false is needed"),
        ({"num_hidden_layers": 2}, "the head has 2 layers; accepted: one"),
        ({"model_type": "deepseek_x"}, "model_type"),
    ],
)
def test_heads_of_other_models_are_refused(
    model: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFileError, match=re.escape(message)) as raised:
        opened(model, tmp_path, **changes)
    assert str(tmp_path / "head") in str(raised.value)


def test_tensors_that_are_missing_or_unknown_are_named(model: Path, tmp_path: Path) -> None:
    arrays = head_arrays(64, 256, 90)
    fewer = {key: one for key, one in arrays.items() if "hidden_norm" not in key}
    with pytest.raises(ModelFileError, match=r"missing tensor 'model\.layers\.2\.hnorm\.weight'"):
        opened(model, tmp_path / "missing", arrays=fewer)
    more = arrays | {"fc_norm.0.weight": np.ones(64, np.float32)}
    with pytest.raises(ModelFileError, match=r"unknown tensor 'fc_norm\.0\.weight'"):
        opened(model, tmp_path / "unknown", arrays=more)
    far = arrays | {"d2t": arrays["d2t"] + 200}
    with pytest.raises(ModelFileError, match="names tokens 202 to 380; each once and below"):
        opened(model, tmp_path / "far", arrays=far)
    floats = arrays | {"d2t": arrays["d2t"].astype(np.float32)}
    with pytest.raises(ModelFileError, match="'d2t' is F32 of shape"):
        opened(model, tmp_path / "floats", arrays=floats)


def test_models_that_no_head_can_guess_for(tmp_path: Path) -> None:
    arrays = head_arrays(64, 256, 90)
    granite = write_case("granite", tmp_path / "granite")
    with pytest.raises(ModelFileError, match="whose residual_scale is"):
        opened(granite, tmp_path, arrays=arrays)


def test_a_gguf_file_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    file = write_file(tmp_path / "head.gguf", head_arrays(32, 256, 90), TAPS)
    with pytest.raises(ModelFileError, match=r"eagle3\.embedding_length is 32; 64 is needed"):
        open_checkpoint(model, head=file)
