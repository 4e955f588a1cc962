"""A GGUF file of a GGUF file of any family: other types, and everything else as it was."""

import json
from collections import Counter

import gguf
import numpy as np
import pytest

import tiny_models
from family_gguf import CONVERSIONS, write_gguf
from family_models import GOLDEN, family_model
from gguf_values import split_gguf
from lanewise import cli
from lanewise.loading.checkpoints.opening import open_checkpoint
from quantizing import errors_on_text, logits_of
from topics import thorough

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.usefixtures("library")]

CHANGED = (
    "general.file_type",
    "general.quantization_version",
    "GGUF.tensor_count",
    "GGUF.kv_count",
)
# Rows in the file's own order, several matrices in one tensor, experts, states, latent attention.
SOME = ("gemma3", "phi3", "qwen3_moe", "qwen3_next", "deepseek_v2")
OTHERS = sorted(
    name
    for name in json.loads((GOLDEN / "families.json").read_text())
    if name in CONVERSIONS and name not in (*SOME, "bitnet_narrow")  # no rows of 32
)


def rewritten(source, out, *options):
    options = ["--gguf", "--check-tokens", "0", *options]
    assert cli.main(["quantize", str(source), "-o", str(out), *options]) == 0
    return out


def metadata_of(reader):
    return {
        key: field.contents()
        for key, field in reader.fields.items()
        if key not in CHANGED and not key.startswith("split.")
    }


@pytest.mark.parametrize("name", [*SOME, *thorough(*OTHERS)])
def test_a_file_of_any_family_is_written_again(name, tmp_path):
    source = write_gguf(family_model(name), tmp_path / "source.gguf")
    out = rewritten(source, tmp_path / "out.gguf", "--format", "q8_0")
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(out)
    assert metadata_of(after) == metadata_of(before)
    assert [t.name for t in after.tensors] == [t.name for t in before.tensors]
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert new.shape.tolist() == old.shape.tolist()
        if new.tensor_type == old.tensor_type:
            np.testing.assert_array_equal(new.data, old.data)
    kinds = Counter(t.tensor_type for t in after.tensors)
    assert kinds[gguf.GGMLQuantizationType.Q8_0]
    with open_checkpoint(source) as one, open_checkpoint(out) as other:
        assert other.config == one.config
    exact, found = logits_of(source), logits_of(out)
    # Roundings, and of random weights other experts and entries; wrong rows give about 1.4.
    assert np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.5


def test_bits_are_chosen_and_matrices_of_one_tensor_have_one_type(tmp_path):
    source = write_gguf(family_model("phi3"), tmp_path / "source.gguf")
    out = rewritten(source, tmp_path / "out.gguf", "--bits", "7")
    kinds = {t.name: t.tensor_type for t in gguf.GGUFReader(out).tensors}
    assert len({kind for name, kind in kinds.items() if name.endswith("weight")}) > 2
    assert "blk.0.attn_qkv.weight" in kinds
    with open_checkpoint(out) as opened:
        weights = sum(t.rows * t.cols for t in opened.tensors)
    assert 0.9 * 7 <= 8 * out.stat().st_size / weights <= 7.0
    exact, found = logits_of(source), logits_of(out)
    assert np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.2


def test_parts_become_one_file(tmp_path):
    whole = write_gguf(family_model("gemma3"), tmp_path / "whole.gguf")
    one = rewritten(whole, tmp_path / "one.gguf", "--format", "q4_0")
    parts = split_gguf(whole, 3)
    other = rewritten(parts[0], tmp_path / "other.gguf", "--format", "q4_0")
    first, second = gguf.GGUFReader(one), gguf.GGUFReader(other)
    assert metadata_of(first) == metadata_of(second)
    parts_of = [
        sorted((t.name, t.tensor_type, t.data.tobytes()) for t in reader.tensors)
        for reader in (first, second)
    ]
    assert parts_of[0] == parts_of[1]


def test_a_calibrated_file_is_nearer_to_its_source(tmp_path):
    folder = tiny_models.write_hf(tiny_models.tiny_model("llama3"), tmp_path / "folder")
    source = rewritten(folder, tmp_path / "source.gguf", "--format", "q8_0")
    plain, fitted = errors_on_text(source, tmp_path, "q4_0", "--gguf")
    assert fitted < 0.8 * plain


def test_what_is_copied_though_it_could_be_quantized_is_said(tmp_path, capsys):
    source = write_gguf(family_model("glm4"), tmp_path / "source.gguf")
    rewritten(source, tmp_path / "out.gguf", "--format", "q8_0")
    assert "matrices keep their types, such as blk.0.attn_q.weight" in capsys.readouterr().err
