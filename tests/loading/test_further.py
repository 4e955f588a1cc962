"""Wrapped language models of further families, what their fields mean, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_families import check_same

from family_gguf import write_gguf
from family_models import family_model, write_case, write_model
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint
from published_configs import CASES


def test_the_language_model_of_a_wrapped_muse(tmp_path: Path) -> None:
    """Beside its tower, with all that a config may leave out."""
    text = CASES["muse_glimmer"] | {"model_type": "muse_glimmer_text"}
    wrapper = {"model_type": "muse_glimmer", "text_config": text, "tie_word_embeddings": False}
    own = write_model(family_model("muse_glimmer"), tmp_path / "own", wrapper)
    check_same(write_case("muse_glimmer", tmp_path / "hf"), own)


def test_a_muse_that_says_little_is_like_the_published_one(tmp_path: Path) -> None:
    names = ("final_logit_softcapping", "output_multiplier", "post_norm_eps", "qk_scale_factor")
    little = {key: value for key, value in CASES["muse_glimmer"].items() if key not in names}
    model = family_model("muse_glimmer")
    given = {"final_logit_softcapping": 20.0, "output_multiplier": 0.19611613513818404}
    said = write_case("muse_glimmer", tmp_path / "said", **given)
    check_same(said, write_model(model, tmp_path / "little", little))


def test_layers_of_a_gguf_muse_turn_by_the_theta_of_windows(tmp_path: Path) -> None:
    model, changes = family_model("muse_glimmer"), {"rope.freq_base_swa": 500000.0}
    other = write_gguf(model, tmp_path / "other.gguf", changes | {"rope.freq_base": 1e6})
    check_same(write_gguf(model, tmp_path / "m.gguf"), other)


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        (
            "muse_glimmer",
            {"layer_rope_theta": [1e4, 0] * 3},
            "6 times 0 or 500000.0, the rope_theta",
        ),
        ("muse_glimmer", {"layer_rope_theta": [0]}, "layer_rope_theta is [0]; 6 times"),
        ("muse_glimmer", {"hidden_activation": "tanh"}, "hidden_activation is 'tanh'"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    name: str, changes: dict[str, Any], error: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(write_case(name, tmp_path / "hf", **changes))
    assert error in str(caught.value)
