"""Quantizing models with states: small matrices stay, what is not supported says so."""

import numpy as np
import pytest

import tiny_models
from lanewise import cli
from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.opening import open_checkpoint
from quantizing import errors_on_text, logits_of, written_family
from topics import thorough

pytestmark = pytest.mark.slow

KEPT = (Role.STATE_DECAY, Role.STATE_BETA, Role.STATE_DECAY_DOWN, Role.STATE_GATE_DOWN)
QUANTIZED = (
    *(Role.STATE_IN, Role.STATE_KEYS, Role.STATE_VALUES, Role.STATE_GATE, Role.STATE_OUT),
    Role.ATTN_GATE,
)


@pytest.mark.parametrize("options", [["--format", "q8_0"], ["--bits", "9"]], ids=["q8_0", "bits"])
@pytest.mark.parametrize(
    "name",
    [
        *("lfm2", "qwen3_next", "granitemoehybrid", "nemotron_h", "falcon_h1", "kimi_linear"),
    ],
)
@pytest.mark.native
@pytest.mark.usefixtures("library")
def test_states_are_quantized_but_for_their_small_matrices(name, options, tmp_path):
    source, folder = written_family(name, tmp_path), tmp_path / "q"
    assert cli.main(["quantize", str(source), "-o", str(folder), *options]) == 0
    with open_checkpoint(source) as before, open_checkpoint(folder) as after:
        assert after.config == before.config
        for old, new in zip(before.tensors, after.tensors, strict=True):
            assert (new.role, new.layer) == (old.role, old.layer)
            if new.role in KEPT:
                assert (new.type, bytes(new.data)) == (old.type, bytes(old.data))
            if new.role in QUANTIZED:
                assert new.n_bytes < old.n_bytes / 2
    exact, found = logits_of(source), logits_of(folder)
    rows = np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)
    # Roundings. Experts that they change make some rows others; wrong weights give about 1.4.
    assert np.quantile(rows, 0.25) < 0.2


@pytest.mark.parametrize(
    "name", ["qwen3_5", "kimi_linear", *thorough("lfm2", "nemotron_h", "falcon_h1")]
)
@pytest.mark.native
@pytest.mark.usefixtures("library")
def test_calibrated_states_are_nearer_to_their_source_on_such_text(name, tmp_path):
    source = written_family(name, tmp_path)
    plain, fitted = errors_on_text(source, tmp_path)
    assert fitted < 0.85 * plain


@pytest.mark.thorough
def test_bits_of_a_model_with_states_are_measured_on_a_text(tmp_path):
    source, out = written_family("qwen3_5", tmp_path), tmp_path / "q"
    text = tiny_models.write_text(tmp_path / "text.txt")
    options = ["--bits", "5.5", "--calibrate", str(text), "--calibration-tokens", "512"]
    assert cli.main(["quantize", str(source), "-o", str(out), *options]) == 0
    with open_checkpoint(out) as checkpoint:
        kept = {tensor.type for tensor in checkpoint.tensors if tensor.role in KEPT}
        assert kept == {TensorType.F32}
        assert len({tensor.type for tensor in checkpoint.tensors if tensor.rows > 1}) > 2


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("nemotron_h", ["--gguf"], "nemotron_h: --gguf cannot write layers with a state yet"),
    ],
)
def test_what_models_with_states_cannot_have_is_refused(name, options, says, tmp_path, capsys):
    source, output = written_family(name, tmp_path), tmp_path / "out"
    text = tiny_models.write_text(tmp_path / "text.txt")
    options = [str(text) if option == "TEXT" else option for option in options]
    assert cli.main(["quantize", str(source), "-o", str(output), *options]) == 1
    assert says in capsys.readouterr().err
    assert not output.exists()
