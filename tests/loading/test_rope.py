"""RoPE scaling: both kinds of file give the same bits."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from model_files import FAMILIES, HEAD_DIM, TinyModel, write_directory, write_gguf

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.programs.rope import llama3_factors

GOLDEN = Path(__file__).parents[1] / "golden/llama3_rope_factors.json"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def golden_cases() -> list[dict[str, object]]:
    return list(json.loads(GOLDEN.read_text()))


@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: str(case["name"]))
def test_llama3_factors_are_the_bits_that_the_public_converter_stores(
    case: dict[str, object],
) -> None:
    found = llama3_factors(**case["settings"])  # type: ignore[arg-type]
    assert struct.pack(f"<{len(found)}f", *found).hex() == case["float32"]


def rope_config(**changes: object) -> TinyModel:
    return TinyModel("llama", extra_config={"rope_scaling": LLAMA3 | changes})


def test_llama3_scaling_is_the_same_from_both_files(tmp_path: Path) -> None:
    model = rope_config()
    with open_checkpoint(write_directory(tmp_path / "hf", model)) as checkpoint:
        factors = checkpoint.config.ropes[0].factors
    assert factors is not None
    assert len(factors) == HEAD_DIM // 2
    assert factors[0] == 1.0
    assert factors[-1] == 8.0
    assert any(1.0 < factor < 8.0 for factor in factors)
    stored = {"rope_freqs.weight": np.array(factors, np.float32)}
    file = write_gguf(tmp_path / "m.gguf", FAMILIES["llama"], extra_tensors=stored)
    with open_checkpoint(file) as checkpoint:
        assert checkpoint.config.ropes[0].factors == factors


def test_new_spelling_means_the_same(tmp_path: Path) -> None:
    old = rope_config()
    new = TinyModel(
        "llama",
        extra_config={"rope_parameters": LLAMA3 | {"rope_theta": 500000.0}},
        drop_config=("rope_theta",),
    )
    with (
        open_checkpoint(write_directory(tmp_path / "old", old)) as a,
        open_checkpoint(write_directory(tmp_path / "new", new)) as b,
    ):
        assert a.config == b.config
        assert b.config.ropes[0].theta == 500000.0


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_linear_scaling_is_the_same_from_both_files(key: str, tmp_path: Path) -> None:
    model = TinyModel("llama", extra_config={"rope_scaling": {key: "linear", "factor": 2.5}})
    metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.5}
    with (
        open_checkpoint(write_directory(tmp_path / "hf", model)) as a,
        open_checkpoint(write_gguf(tmp_path / "m.gguf", FAMILIES["llama"], metadata)) as b,
    ):
        assert a.config.ropes[0].factors == b.config.ropes[0].factors == (2.5,) * (HEAD_DIM // 2)


@pytest.mark.parametrize(("said", "found"), [(None, 1.13862944), (1.0, 1.13862944), (1.3, 1.3)])
def test_yarns_factor_of_attention_is_what_a_gguf_file_says(
    said: float | None, found: float, tmp_path: Path
) -> None:
    keys = {"type": "yarn", "factor": 4.0, "original_context_length": 64, "yarn_attn_factor": said}
    metadata = {f"llama.rope.scaling.{key}": value for key, value in keys.items() if value}
    path = write_gguf(tmp_path / "m.gguf", FAMILIES["llama"], metadata)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.config.ropes[0].scale == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize(
    "scaling", [None, {"rope_type": "default"}, {"type": "linear", "factor": 1}]
)
def test_no_scaling_has_no_factors(scaling: object, tmp_path: Path) -> None:
    model = TinyModel("llama", extra_config={"rope_scaling": scaling})
    with open_checkpoint(write_directory(tmp_path / "hf", model)) as checkpoint:
        assert checkpoint.config.ropes[0].factors is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"high_freq_factor": 0.5}, "high_freq_factor is 0.5; a number from low_freq_factor on"),
        ({"factor": None}, "factor is missing"),
        ({"factor": -2}, "factor is -2"),
        ({"original_max_position_embeddings": 1.5}, "original_max_position_embeddings is 1.5"),
        ({"rope_type": "longrope"}, "long_factor is missing; a list of numbers"),
        ({"mrope_section": [2, 3, 3]}, "mrope_section is [2, 3, 3]; unknown field"),
    ],
)
def test_unusable_scaling_is_explained(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(write_directory(tmp_path / "hf", rope_config(**changes)))
    assert message in str(caught.value)


@pytest.mark.parametrize("factors", [[1.0] * 3, [0.0] * 8, [float("nan")] * 8])
def test_unusable_stored_factors_are_explained(factors: list[float], tmp_path: Path) -> None:
    stored = {"rope_freqs.weight": np.array(factors, np.float32)}
    path = write_gguf(tmp_path / "m.gguf", FAMILIES["llama"], extra_tensors=stored)
    with pytest.raises(ModelFileError, match="RoPE factors; 8 positive finite numbers"):
        open_checkpoint(path)
