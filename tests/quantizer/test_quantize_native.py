"""Quantized models computed with: the library reads every format as the quantizer wrote it."""

from pathlib import Path

import numpy as np
import pytest

import tiny_models
from data_files import data
from lanewise import cli
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import usable_levels
from lanewise.settings import QUANTIZED_FORMATS
from lanewise_quantizer.gguf_blocks import LAYOUTS
from lanewise_quantizer.storage import decode_rows
from quantizing import logits_of
from topics import thorough

pytestmark = [pytest.mark.native, pytest.mark.slow, pytest.mark.usefixtures("library")]
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    model = tiny_models.tiny_model("llama2", **SIZES)
    return tiny_models.write_hf(model, tmp_path_factory.mktemp("source") / "m")


def decoded(quantized: Path, folder: Path) -> Path:
    """A model of floats with the weights that numpy reads from a quantized one."""
    tensors = {}
    with open_checkpoint(quantized) as checkpoint:
        for tensor in checkpoint.tensors:
            rows = np.frombuffer(tensor.data, np.uint8).reshape(tensor.rows, -1).copy()
            table = None if tensor.table is None else np.frombuffer(tensor.table, np.int8)
            weights = decode_rows(tensor.type.name.lower(), rows, tensor.cols, table)
            tensors[tensor.name] = weights if tensor.rows > 1 else weights[0]
    model = tiny_models.tiny_model("llama2", **SIZES)
    return tiny_models.write_hf(tiny_models.TinyModel("llama2", model.config, tensors), folder)


USUAL = ("q8_0", "q4_0", "q4_k", "iq4_xs", "cb2", "cb4", "fp6", "a4_g32", "w8a8")


@pytest.mark.parametrize(
    "name", [*USUAL, *thorough(*(name for name in QUANTIZED_FORMATS if name not in USUAL))]
)
def test_the_library_reads_what_was_written(source, tmp_path, name):
    folder = tmp_path / "q"
    options = ["--format", name]
    if name == "t2":
        options += ["--calibrate", str(tiny_models.write_text(tmp_path / "text.txt"))]
        options += ["--calibration-tokens", "512"]
    else:
        options += ["--calibrate", "none"]
    assert cli.main(["quantize", str(source), "-o", str(folder), *options]) == 0
    found = logits_of(folder, threads=2)
    exact = logits_of(decoded(folder, tmp_path / "floats"), threads=2)
    # what is left is the rounding of activations to eight bits; wrong weights give about 1.4;
    # with minimums it is more
    assert np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.05
    for isa in usable_levels():  # each lays weights out in its own way
        assert (logits_of(folder, float_activations=True, isa=isa, threads=2) == exact).all()
    packed = tmp_path / "packed"
    assert cli.main(["pack", str(folder), "-o", str(packed)]) == 0
    assert (logits_of(packed, threads=2) == found).all()
    if name in LAYOUTS:
        file = tmp_path / "m.gguf"
        options = ["--format", name, "--gguf", "--calibrate", "none"]
        assert cli.main(["quantize", str(source), "-o", str(file), *options]) == 0
        assert (logits_of(file, threads=2) == found).all()


@pytest.mark.parametrize("name", ["stories3M-hf", "books7M"])
def test_trained_models_keep_their_perplexity(tmp_path, capsys, name):
    """Roughly: the bits of a format bound what it may cost, and a broken one costs far more."""
    model = data(f"models/{name}")
    texts = {"stories3M-hf": "tinystories_val_yuninxia.txt", "books7M": "alice.heldout.txt"}
    text = data(f"text/{texts[name]}")
    results = {}
    for kind, most in (("", 1), ("q8_0", 1.003), ("q4_0", 1.4), ("a4_g32", 1.4), ("cb4", 1.4)):
        path = model
        if kind:
            path = tmp_path / kind
            options = ["--format", kind, "--head", "q8_0"]
            assert cli.main(["quantize", str(model), "-o", str(path), *options]) == 0
        capsys.readouterr()
        scored = ["--file", str(text), "--chars", "8000", "--context", "256", "--json"]
        assert cli.main(["perplexity", str(path), *scored]) == 0
        results[kind] = float(capsys.readouterr().out.split('"perplexity": ')[1].split(",")[0])
        assert results[kind] <= most * results[""]
