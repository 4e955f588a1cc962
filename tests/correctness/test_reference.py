"""Logits and perplexities against transformers on torch, an independent implementation.

Its outputs are committed (tests/golden/reference, with the script that makes them); the live test
runs that script again where torch is installed.
"""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from data_files import data
from goldens import check_goldens
from lanewise.commands.perplexity import cut_windows, score_windows
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import BLOCK_TOKENS, Batch, Model, Session
from lanewise.text.tokenizer import Tokenizer
from tiny_models import FAMILIES, tiny_model, write_gguf, write_hf

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "tests" / "golden" / "reference"
GOLDEN = np.load(REFERENCE / "logits.npz")
RECORDS = json.loads((REFERENCE / "perplexity.json").read_text())
BUNDLED = ROOT / "service" / "lanewise" / "demo" / "lanewise-demo-q8_0.gguf"
ISA = os.environ.get("LANEWISE_ISA")

# golden name -> files of one trained model
TRAINED = {
    "stories260K-hf": ("stories260K-hf", "stories260K-f32.gguf"),
    "stories3M-hf": ("stories3M-hf",),
    "books7M": ("books7M",),
}


def logits_of(path: Path, prompt: list[int], positions: list[int]) -> np.ndarray:
    """Logits at some positions of a prompt that is run in one step."""
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, isa=ISA) as model,
        Session(
            model,
            threads=2,
            blocks=8,
            max_batch_tokens=len(prompt),
            max_batch_logits=len(positions),
            kv_type="f32",
        ) as session,
    ):
        blocks = list(range(-(-len(prompt) // BLOCK_TOKENS)))
        batch = Batch(prompt, [0, len(prompt)], [0], [blocks], positions)
        return session.step(batch).copy()


def golden(name: str) -> tuple[list[int], list[int], np.ndarray]:
    prompt, positions, logits = (
        GOLDEN[f"{name}/{part}"] for part in ("prompt", "positions", "logits")
    )
    return prompt.tolist(), positions.tolist(), logits


def assert_equal_to_reference(path: Path, name: str) -> None:
    prompt, positions, expected = golden(name)
    found = logits_of(path, prompt, positions)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() / np.abs(expected).max() < 2e-4


def written(family: str, kind: str, folder: Path) -> Path:
    model = tiny_model(family)
    if kind == "gguf":
        return write_gguf(model, folder / f"{family}.gguf")
    return write_hf(model, folder / family)


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_model_has_the_logits_of_transformers(family, kind, tmp_path):
    assert_equal_to_reference(written(family, kind, tmp_path), family)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_kinds_of_file_have_one_hash(family, tmp_path):
    prompt, _, _ = golden(family)
    every = list(range(len(prompt)))
    hashes = {
        hashlib.sha256(logits_of(written(family, kind, tmp_path), prompt, every)).hexdigest()
        for kind in ("safetensors", "gguf")
    }
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("name", "file"), [(name, file) for name, files in TRAINED.items() for file in files]
)
def test_a_trained_model_has_the_logits_of_transformers(name, file):
    assert_equal_to_reference(data(f"models/{file}"), name)


def test_both_files_of_a_trained_model_have_one_hash():
    prompt, _, _ = golden("stories260K-hf")
    every = list(range(len(prompt)))
    paths = [data(f"models/{file}") for file in TRAINED["stories260K-hf"]]
    first, second = (logits_of(path, prompt, every) for path in paths)
    assert np.array_equal(first, second)


def test_the_tolerance_notices_a_sliding_window_one_token_too_wide(tmp_path):
    path = written("mistral", "safetensors", tmp_path) / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"sliding_window": config["sliding_window"] + 1}))
    with pytest.raises(AssertionError):
        assert_equal_to_reference(path.parent, "mistral")


def perplexity(
    path: Path, text: str, context: int, weights: str | None, kv_type: str | None = None
) -> tuple[float, int]:
    """Perplexity and tokens scored, in the windows of `lanewise perplexity`."""
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, weights=weights, isa=ISA, threads=2) as model,
    ):
        tokenizer = Tokenizer.from_files(checkpoint.tokenizer)
        start = tokenizer.encode("", add_bos=True, parse_special=False)
        ids = tokenizer.encode(text, add_bos=False, parse_special=False)
        windows, batch = cut_windows(ids, start, context), 8
        with Session(
            model,
            threads=2,
            blocks=batch * context // BLOCK_TOKENS,
            max_batch_tokens=batch * context,
            max_batch_logits=batch * context,
            kv_type=kv_type or ("f32" if model.weights == "f32" else "f16"),
        ) as session:
            score = score_windows(session, windows, chunk=context, batch=batch)
        return score.perplexity, score.tokens


def record_of(model: str, text: str | None) -> tuple[dict, str]:
    (record,) = (r for r in RECORDS if (r["model"], r["text"]) == (model, text))
    if text is None:
        return record, (REFERENCE / "passage.txt").read_text(encoding="utf-8")
    return record, text


def test_the_bundled_model_is_within_half_a_percent_of_its_f32_weights():
    record, text = record_of("books7M", None)
    found, tokens = perplexity(BUNDLED, text, record["context"], None)
    assert tokens == record["tokens"]
    assert found == pytest.approx(record["f32"], rel=0.005)


def test_a_cache_of_int8_costs_less_than_a_fifth_of_a_percent():
    record, text = record_of("books7M", None)
    exact, _ = perplexity(BUNDLED, text, record["context"], None)
    found, _ = perplexity(BUNDLED, text, record["context"], None, "int8")
    assert found != exact
    assert found == pytest.approx(exact, rel=0.002)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "base", "tolerance"), [("q8_0", "f32", 0.005), ("q4_0", "q4_0", 0.003)]
)
@pytest.mark.parametrize("model", ["books7M", "stories3M-hf"])
def test_quantized_on_load_perplexity(model, weights, base, tolerance):
    record = next(r for r in RECORDS if r["model"] == model and r["text"])
    text = data(f"text/{record['text']}").read_text(encoding="utf-8")[: record["chars"]]
    path = data(f"models/{model}")
    found, tokens = perplexity(path, text, record["context"], weights)
    assert tokens == record["tokens"]
    assert found == pytest.approx(record[base], rel=tolerance)


@pytest.mark.reference
def test_the_goldens_are_what_transformers_computes_now():
    check_goldens(REFERENCE / "make_reference.py")
