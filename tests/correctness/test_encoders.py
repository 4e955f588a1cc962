"""Every family of encoders from its files to its results, against transformers.

What transformers computes is committed (tests/golden/encoders, with the script that makes it); the
live test runs that script again where torch is installed.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from encoder_models import (
    GGUF_CASES,
    GOLDEN,
    encoder_model,
    is_classifier,
    texts_of,
    types_of,
    write_gguf,
)
from family_models import write_model
from goldens import check_goldens
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Encoder, NativeError, usable_levels
from opened_models import opened_encoder, write_as_packed
from published_configs import ENCODERS, PUBLISHED

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

RESULTS = np.load(GOLDEN / "results.npz")
ISA = os.environ.get("LANEWISE_ISA")
# Cases that every level computes.
LEVELS = (
    *("bert", "xlm_roberta_reranker", "modernbert", "nomic_bert", "mpnet", "mpnet_one_layer"),
    *("distilbert_classifier", "eurobert_classifier", "qwen2_both_ways", "embedding_gemma2"),
    *("deberta_v3", "deberta_v3_classifier"),
)
TOLERANCE = 1e-5  # of the largest number; 2e-6 is the most that is found


@pytest.fixture
def path(name: str, tmp_path: Path) -> Path:
    return write_model(encoder_model(name), tmp_path / "model")


def results(encoder: Encoder, name: str) -> np.ndarray:
    texts, types = texts_of(), types_of(ENCODERS[name])
    if is_classifier(ENCODERS[name]):
        return encoder.run(texts, types)
    return np.stack([encoder.run(texts, types, pooling=p) for p in ("cls", "mean", "last")], axis=1)


@pytest.mark.parametrize("name", ENCODERS)
def test_results_are_those_of_transformers(name: str, path: Path) -> None:
    with opened_encoder(path) as encoder:
        found, expected = results(encoder, name), RESULTS[name]
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() < TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("name", ENCODERS)
def test_the_published_config_means_the_same_program(name: str, path: Path, tmp_path: Path) -> None:
    other = write_model(encoder_model(name), tmp_path / "published", PUBLISHED[name])
    with open_checkpoint(path) as one, open_checkpoint(other) as two:
        assert one.config == two.config


@pytest.mark.parametrize("name", GGUF_CASES)
def test_a_gguf_file_has_the_bits_of_the_directory(name: str, path: Path, tmp_path: Path) -> None:
    file = write_gguf(encoder_model(name), GGUF_CASES[name], tmp_path / "m.gguf")
    with opened_encoder(path) as one, opened_encoder(file) as other:
        assert one.model.config.pooling == other.model.config.pooling
        assert results(one, name).tobytes() == results(other, name).tobytes()


@pytest.mark.parametrize("weights", [None, "q8_0"])
@pytest.mark.parametrize("name", LEVELS)
def test_levels_threads_steps_and_packing_give_the_same_bits(
    name: str, weights: str | None, path: Path, tmp_path: Path
) -> None:
    """All texts together, one by one, and in steps that hold a few."""
    texts, types = texts_of(), types_of(ENCODERS[name])
    with opened_encoder(path, weights=weights) as encoder:
        expected = encoder.run(texts, types).tobytes()
    for i, isa in enumerate(usable_levels()):
        with opened_encoder(
            path, isa, 1 + i % 3, weights, max_tokens=[512, 200, 256][i % 3]
        ) as encoder:
            assert encoder.run(texts, types).tobytes() == expected, isa
            alone = [encoder.run([a], [b]) for a, b in zip(texts, types, strict=True)]
            assert np.concatenate(alone).tobytes() == expected, isa
    packed = write_as_packed(path, tmp_path / "packed", weights)
    with opened_encoder(packed, threads=1) as encoder:
        assert encoder.run(texts, types).tobytes() == expected


@pytest.mark.parametrize("name", LEVELS)
def test_the_longest_text_has_its_bits_beside_others(name: str, path: Path) -> None:
    with opened_encoder(path, threads=2, max_tokens=900) as encoder:
        texts = texts_of((5, encoder.model.config.context_length, 1, 64))
        together = encoder.run(texts)
        for text, row in zip(texts, together, strict=True):
            assert encoder.run([text])[0].tobytes() == row.tobytes()
        with pytest.raises(ValueError, match="accepted: 1 to"):
            encoder.run(texts_of((encoder.model.config.context_length + 1,)))


def test_rows_of_tokens_are_what_is_pooled(tmp_path: Path) -> None:
    texts = texts_of()
    with opened_encoder(write_model(encoder_model("modernbert"), tmp_path)) as encoder:
        rows = encoder.run(texts, pooling="none")
        ends = np.cumsum([len(text) for text in texts])
        assert rows.shape == (ends[-1], encoder.dims)
        assert rows[ends - 1].tobytes() == encoder.run(texts, pooling="last").tobytes()
        lengths = np.linalg.norm(encoder.run(texts, normalize=True), axis=1)
        assert np.abs(lengths - 1).max() < 1e-6


def test_steps_are_of_as_many_tokens_as_caches_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each thread; whole texts, and one that is longer alone."""
    lengths, seen = (100, 100, 60, 290, 1, 1, 1), []
    with opened_encoder(write_model(encoder_model("bert"), tmp_path), threads=2) as encoder:
        step = encoder._step

        def watched(start: np.ndarray, *rest: object) -> None:
            seen.append(np.diff(start).tolist())
            step(start, *rest)

        monkeypatch.setattr(encoder, "_step", watched)
        encoder.run(texts_of(lengths))
    assert seen == [[100, 100], [60], [290], [1, 1, 1]]


def test_a_text_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    good = texts_of((3,))[0]
    with opened_encoder(write_model(encoder_model("bert"), tmp_path), max_tokens=200) as encoder:

        def refusal(*texts: np.ndarray, **options: object) -> str:
            with pytest.raises((ValueError, NativeError)) as error:
                encoder.run(texts, **options)
            return str(error.value)

        assert refusal(good, good[:0]) == "text 1 has 0 tokens; accepted: 1 to 200"
        assert refusal(np.full(201, 5)) == "text 0 has 201 tokens; accepted: 1 to 200"
        assert refusal(good, np.array([3, 256])).startswith("text 1 has token ids from 3 to 256;")
        assert "from -1 to 3; accepted: 0 to 255" in refusal(np.array([3, -1], np.int32))
        assert "token types from 2 to 2" in refusal(good, token_types=[np.full(3, 2)])
        assert "as many for each text" in refusal(good, token_types=[np.zeros(2, np.uint32)])
        assert "accepted: none, mean, cls, last" in refusal(good, pooling="max")
        assert encoder.run([]).shape == (0, 48)
        assert encoder.run([good]).shape == (1, 48)


@pytest.mark.reference
@pytest.mark.parametrize("script", ["make_encoders.py", "make_judges.py", "make_colberts.py"])
def test_the_goldens_are_what_transformers_computes_now(script: str) -> None:
    check_goldens(GOLDEN / script)
