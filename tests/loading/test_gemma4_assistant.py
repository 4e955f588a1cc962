"""Gemma 4's assistants: GGUF files are the same, and what does not fit its model is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from family_models import write_case
from gemma4_assistants import KINDS, assistant_arrays, assistant_config, write_assistant, write_file
from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.drafts import read_draft
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime.targets import target_types


@pytest.fixture(scope="module", params=["gemma4", "gemma4_small"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(name, tmp_path_factory.mktemp("m") / "model")


def test_its_layers_read_the_models_keys(name: str, model: Path, tmp_path: Path) -> None:
    head = write_assistant(name, tmp_path / "head")
    assert read_draft(str(head)).head == head
    with open_checkpoint(model) as plain, open_checkpoint(model, head=head) as found:
        n, config = plain.config.n_layers, found.config
        assert config.layers[:n] == plain.config.layers
        assert config.n_head_layers == len(KINDS)
        attentions = [one.attention for one in config.layers]
        for one, kind in zip(attentions[n:], KINDS, strict=True):
            read = attentions[one.kv_layer]
            assert read.kv_layer is None
            assert one.window == (8 if kind.startswith("sliding") else None)
            assert (read.window is None) == (one.window is None)
        found.weights_name = "q4_0"
        kinds = dict(zip(found.tensors, target_types(found, None), strict=True))
    in_8_bits = [one for one, kind in kinds.items() if kind is TensorType.Q8_0]
    assert {one.layer for one in in_8_bits} == set(range(n, n + len(KINDS)))
    assert {one.role for one in in_8_bits} >= {Role.HEAD_RETURN, Role.HEAD_OUTPUT, Role.FFN_UP}


def test_a_gguf_file_is_the_same_assistant(name: str, model: Path, tmp_path: Path) -> None:
    folder = write_assistant(name, tmp_path / "head")
    file = write_file(name, tmp_path / "head.gguf")
    assert read_draft(str(file)).head == file
    with open_checkpoint(model, head=folder) as first, open_checkpoint(model, head=file) as second:
        assert second.config == first.config
        values = [
            {(t.role, t.layer): bytes(t.data) for t in one.tensors} for one in (first, second)
        ]
    assert values[0] == values[1]


def test_lists_of_tokens_are_not_needed(name: str, model: Path, tmp_path: Path) -> None:
    config = assistant_config(name)
    arrays = assistant_arrays(config) | {
        "masked_embedding.centroids.weight": np.zeros((4, 32), np.float32),
        "masked_embedding.token_ordering": np.arange(256),
    }
    ordered = {"use_ordered_embeddings": True, "num_centroids": 4}
    head = write_assistant(name, tmp_path / "head", arrays, ordered)
    with open_checkpoint(model, head=head) as found:
        assert found.config.reader is not None


@pytest.mark.parametrize(
    ("changes", "whole", "message"),
    [
        ({}, {"backbone_hidden_size": 128}, "backbone_hidden_size is 128; 64 is needed, as of"),
        ({"vocab_size": 512}, {}, "vocab_size is 512; 256 is needed"),
        ({"num_key_value_heads": 4}, {}, "layers of sliding_attention have 4 KV heads of 16; 2 of"),
        ({"global_head_dim": 64}, {}, "layers of full_attention have"),
        ({"sliding_window": 11}, {}, "sliding_window is 11; the 9 of"),
        ({}, {"text_config": None}, "text_config"),
    ],
)
def test_assistants_of_other_models_are_refused(
    name: str,
    model: Path,
    tmp_path: Path,
    changes: dict[str, Any],
    whole: dict[str, Any],
    message: str,
) -> None:
    arrays = assistant_arrays(assistant_config(name, **changes))
    head = write_assistant(name, tmp_path / "head", arrays, whole, **changes)
    with pytest.raises(ModelFileError, match=re.escape(message)) as raised:
        open_checkpoint(model, head=head)
    assert str(head) in str(raised.value)


def test_a_model_of_another_family_has_no_such_keys(tmp_path: Path) -> None:
    model = write_case("llama", tmp_path / "model")
    head = write_assistant("gemma4", tmp_path / "head")
    assert json.loads((head / "config.json").read_text())["model_type"] == "gemma4_assistant"
    with pytest.raises(ModelFileError, match="has no keys of such layers"):
        open_checkpoint(model, head=head)
