"""Quantizing families whose layers are put together otherwise than Llama's."""

import numpy as np
import pytest

import tiny_models
from lanewise import cli
from lanewise.loading.base.checkpoint import Role
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise_quantizer.commands.calibrated import Calibrated
from lanewise_quantizer.fit.source import Source
from quantizing import errors_on_text, logits_of, written_family
from topics import thorough

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.usefixtures("library")]


@pytest.mark.parametrize("options", [["--format", "q8_0"], ["--bits", "9"]], ids=["q8_0", "bits"])
@pytest.mark.parametrize(
    "name", ["gpt2", "gemma4_small", "apertus", "glm4", "falcon_new", "minicpm3", "youtu"]
)
def test_matrices_are_quantized_but_for_positions(name, options, tmp_path):
    """The library reads rows that are added to embeddings as floats only."""
    source, folder = written_family(name, tmp_path), tmp_path / "q"
    assert cli.main(["quantize", str(source), "-o", str(folder), *options]) == 0
    with open_checkpoint(source) as before, open_checkpoint(folder) as after:
        assert after.config == before.config
        for old, new in zip(before.tensors, after.tensors, strict=True):
            assert (new.role, new.layer) == (old.role, old.layer)
            if new.role is Role.POSITION_EMBEDDING:
                assert (new.type, bytes(new.data)) == (old.type, bytes(old.data))
            elif new.role in (Role.ATTN_Q, Role.FFN_UP, Role.FFN_DOWN):
                assert new.n_bytes < old.n_bytes / 2
    exact, found = logits_of(source), logits_of(folder)
    # Roundings; wrong weights give about 1.4.
    assert np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.1


def test_what_mixes_streams_stays_as_it_is(tmp_path):
    """The library reads these matrices as floats only."""
    source, folder = written_family("deepseek_v4", tmp_path), tmp_path / "q"
    assert cli.main(["quantize", str(source), "-o", str(folder), "--format", "q8_0"]) == 0
    kept = (Role.HYPER_ATTN, Role.HYPER_FFN, Role.HYPER_HEAD, Role.ROUTER_TABLE)
    with open_checkpoint(source) as before, open_checkpoint(folder) as after:
        assert after.config == before.config
        for old, new in zip(before.tensors, after.tensors, strict=True):
            if new.role in kept:
                assert (new.type, bytes(new.data)) == (old.type, bytes(old.data))
            elif new.role in (Role.ATTN_GROUPS, Role.COMPRESS_ROWS, Role.EXPERTS_UP):
                assert new.n_bytes < old.n_bytes / 2
    exact, found = logits_of(source), logits_of(folder)
    # An index may choose other entries, and routers other experts; wrong weights give about 1.4.
    assert np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.5


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("deepseek_v2", "q4_0"), ("gpt2", "q4_0")),
        *thorough(("gemma4_small", "q4_0"), ("gemma4_mixture", "q4_0"), ("deepseek_v3", "cb4")),
        *thorough(("glm4_moe_lite", "q4_0"), ("minicpm3", "q4_0"), ("youtu", "cb2")),
        *thorough(("mistral4", "q4_0"), ("gemma4_small", "cb2")),
    ],
)
def test_calibrated_families_are_nearer_to_their_source_on_such_text(name, kind, tmp_path):
    plain, fitted = errors_on_text(written_family(name, tmp_path), tmp_path, kind)
    assert fitted < 0.8 * plain


@pytest.mark.parametrize(
    ("name", "role"),
    [("gemma4_small", Role.PER_LAYER_EMBEDDING), ("minicpm3", Role.LATENT_VALUES)],
)
def test_further_matrices_become_a_trellis_which_only_a_text_makes(name, role, tmp_path):
    source, out = written_family(name, tmp_path), tmp_path / "q"
    text = tiny_models.write_text(tmp_path / "text.txt")
    options = ["--format", "t2", "--calibrate", str(text), "--calibration-tokens", "512"]
    assert cli.main(["quantize", str(source), "-o", str(out), *options]) == 0
    with open_checkpoint(out) as checkpoint:
        types = {tensor.type.name for tensor in checkpoint.tensors if tensor.role is role}
    assert types == {"T2"}
    exact, found = logits_of(source), logits_of(out)
    assert np.linalg.norm(found - exact) / np.linalg.norm(exact) < 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["minicpm3", "gemma4_small"])
def test_bits_of_further_matrices_are_measured_on_a_text(name, tmp_path):
    source, out = written_family(name, tmp_path), tmp_path / "q"
    text = tiny_models.write_text(tmp_path / "text.txt")
    options = ["--bits", "5.5", "--calibrate", str(text), "--calibration-tokens", "256"]
    assert cli.main(["quantize", str(source), "-o", str(out), *options]) == 0
    with open_checkpoint(out) as checkpoint:
        assert len({tensor.type for tensor in checkpoint.tensors if tensor.rows > 1}) > 2
    exact, found = logits_of(source), logits_of(out)
    assert np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.6


@pytest.mark.parametrize("stop_after", [20, *thorough(2)])
def test_an_interrupted_run_looks_up_the_tables_that_it_has(stop_after, tmp_path, monkeypatch):
    """A table of what layers have for themselves is never held whole as floats."""
    read = Source.__call__

    def checked(self, role, layer=0):
        assert role is not Role.PER_LAYER_EMBEDDING
        return read(self, role, layer)

    monkeypatch.setattr(Source, "__call__", checked)
    source, text = written_family("gemma4_small", tmp_path), tmp_path / "text.txt"
    tiny_models.write_text(text)
    options = ["--format", "q4_0", "--calibrate", str(text), "--calibration-tokens", "512"]
    assert cli.main(["quantize", str(source), "-o", str(tmp_path / "whole"), *options]) == 0
    keep, calls = Calibrated.keep, []

    def stop(self, *arguments):
        keep(self, *arguments)
        calls.append(arguments[:2])
        if len(calls) == stop_after:
            raise KeyboardInterrupt

    monkeypatch.setattr(Calibrated, "keep", stop)
    cut = tmp_path / "cut"
    assert cli.main(["quantize", str(source), "-o", str(cut), *options]) != 0
    assert cli.main(["quantize", str(source), "-o", str(cut), *options]) == 0
    assert len(calls) == len(set(calls))  # none was made twice
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (cut / path.name).read_bytes(), path.name
