"""Quantizing models with states: small matrices stay, what is not supported says so."""

from pathlib import Path

import numpy as np
import pytest

import tiny_models
from family_models import family_model, write_model
from lanewise import cli
from lanewise.loading.checkpoint import Role
from lanewise.loading.opening import open_checkpoint
from lanewise.runtime import Batch, Model, Session

pytestmark = pytest.mark.slow

KEPT = (Role.STATE_DECAY, Role.STATE_BETA)
QUANTIZED = (Role.STATE_IN, Role.STATE_GATE, Role.STATE_OUT, Role.ATTN_GATE)


def written(name: str, folder: Path) -> Path:
    return write_model(family_model(name), folder / name)


def logits(path: Path) -> np.ndarray:
    prompt = tiny_models.prompt(40)
    batch = Batch(prompt, [0, len(prompt)], [0], [[0, 1]], range(len(prompt)))
    shape = {"blocks": 2, "max_batch_tokens": 40, "max_batch_logits": 40, "kv_type": "f32"}
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, threads=1) as model,
        Session(model, threads=1, **shape) as session,
    ):
        return session.step(batch).copy()


@pytest.mark.parametrize("options", [["--format", "q8_0"], ["--bits", "9"]], ids=["q8_0", "bits"])
@pytest.mark.parametrize("name", ["lfm2", "qwen3_next", "granitemoehybrid", "nemotron_h"])
@pytest.mark.native
@pytest.mark.usefixtures("library")
def test_states_are_quantized_but_for_their_small_matrices(name, options, tmp_path):
    source, folder = written(name, tmp_path), tmp_path / "q"
    assert cli.main(["quantize", str(source), "-o", str(folder), *options]) == 0
    with open_checkpoint(source) as before, open_checkpoint(folder) as after:
        assert after.config == before.config
        for old, new in zip(before.tensors, after.tensors, strict=True):
            assert (new.role, new.layer) == (old.role, old.layer)
            if new.role in KEPT:
                assert (new.type, bytes(new.data)) == (old.type, bytes(old.data))
            if new.role in QUANTIZED:
                assert new.n_bytes < old.n_bytes / 2
    exact, found = logits(source), logits(folder)
    # Roundings, and experts that they change; wrong weights give about 1.4.
    assert np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.2


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("lfm2", ["--calibrate", "TEXT"], "lfm2: calibration cannot compute layers with a state"),
        ("qwen3_5", ["--calibrate", "TEXT"], "calibration cannot compute attention with an output"),
        ("nemotron_h", ["--gguf"], "nemotron_h: --gguf cannot write layers with a state yet"),
    ],
)
def test_what_models_with_states_cannot_have_is_refused(name, options, says, tmp_path, capsys):
    source, output = written(name, tmp_path), tmp_path / "out"
    text = tiny_models.write_text(tmp_path / "text.txt")
    options = [str(text) if option == "TEXT" else option for option in options]
    assert cli.main(["quantize", str(source), "-o", str(output), *options]) == 1
    assert says in capsys.readouterr().err
    assert not output.exists()
