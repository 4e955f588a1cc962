"""Towers from files to rows, and texts with pictures to logits, against transformers.

What transformers computes is committed (tests/golden/towers, with the script that makes it); the
live test runs that script again where torch is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from family_models import write_model
from goldens import check_goldens
from lanewise.loading.base.checkpoint import Checkpoint
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.towers.table import TOWERS
from lanewise.runtime import Batch, Model, Session, usable_levels
from lanewise.runtime.tower import Pixels, Tower
from opened_models import ISA
from tiny_models import tiny_model, write_gguf
from tower_gguf import KINDS, write_both, write_mmproj
from tower_models import (
    CASES,
    COUNTS,
    GOLDEN,
    IMAGE,
    more_pictures,
    pictures,
    positions_with,
    prompt_with,
    tower_model,
)

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

ARRAYS = np.load(GOLDEN / "rows.npz")
ROWS, LOGITS = 1e-4, 2e-4  # of the largest value
ALL = 1 << 60  # nanoseconds


@pytest.fixture
def path(name: str, tmp_path: Path) -> Path:
    return write_model(tower_model(name), tmp_path / "model")


def tower_of(checkpoint: Checkpoint) -> Checkpoint:
    assert checkpoint.tower is not None
    return checkpoint.tower


@contextmanager
def opened_tower(
    checkpoint: Checkpoint, isa: str | None = ISA, threads: int = 2, weights: str | None = None
) -> Iterator[Tower]:
    """Beside ``weights`` queries meet keys in codes, as in models large enough to be of them."""
    kv_type = None if weights is None else "int8"
    with (
        Model.load(tower_of(checkpoint), isa=isa, threads=1, weights=weights) as model,
        Tower(model, threads=threads, kv_type=kv_type) as tower,
    ):
        yield tower


def rows_of(tower: Tower, parts: list[Pixels], budget: int = ALL) -> np.ndarray:
    job = tower.begin(parts)
    while not job.advance(budget):
        pass
    return job.rows


def close(found: np.ndarray, expected: np.ndarray, most: float) -> bool:
    assert found.shape == expected.shape
    return bool(np.abs(found - expected).max() <= most * np.abs(expected).max())


def chunks_of(n: int, most: int, spans: list[tuple[int, int]]) -> list[int]:
    """Where steps of up to ``most`` tokens begin; none begins inside a span."""
    found, at = [], 0
    while at < n:
        found.append(at)
        at = min(n, at + most)
        at = next((end for first, end in spans if first < at < end), at)
    return [*found, n]


# Token ids, where pictures begin, their rows, positions if not by place, whether they see ahead.
Case = tuple[list[int], list[int], list[np.ndarray], np.ndarray | None, bool]


def case_of(checkpoint: Checkpoint, parts: list[Pixels], rows: list[np.ndarray]) -> Case:
    """A text with pictures as a model reads it."""
    vision = checkpoint.vision
    assert vision is not None
    ids, firsts = prompt_with([len(one) for one in rows])
    positions = None
    if vision.n_axes > 1:
        side = vision.patch_size * vision.merge
        grids = [(part.shape[0] // side, part.shape[1] // side) for part in parts]
        positions = positions_with(firsts, grids, len(ids))
    if vision.row_token_id is not None:
        ids = [vision.row_token_id if i == IMAGE else i for i in ids]
    return ids, firsts, rows, positions, vision.both_ways != "none"


def logits_of(session: Session, case: Case, chunk: int) -> np.ndarray:
    """Logits of a text with rows in it, ``chunk`` tokens a step, or a whole picture if it must."""
    ids, firsts, rows, positions, sees_ahead = case
    blocks, found = list(range(len(ids) // 32 + 1)), []
    spans = [(first, first + len(array)) for first, array in zip(firsts, rows, strict=True)]
    sees = np.zeros(len(ids), np.uint32)
    for first, end in spans if sees_ahead else ():
        sees[first : end - 1] = end
    starts = chunks_of(len(ids), chunk, spans if sees_ahead else [])
    for at, stop in pairwise(starts):
        now = ids[at:stop]
        given = []
        for first, array in zip(firsts, rows, strict=True):
            begin, end = max(at, first), min(at + len(now), first + len(array))
            if begin < end:
                given.append((begin - at, array[begin - first : end - first]))
        batch = Batch(now, [0, len(now)], [at], [blocks], range(len(now)), rows=given)
        batch.positions = None if positions is None else positions[:, at:stop]
        batch.sees = sees[at:stop] if sees_ahead else None
        found.append(session.step(batch).copy())
    return np.concatenate(found)


@contextmanager
def opened_text(checkpoint: Checkpoint, isa: str | None = ISA) -> Iterator[Session]:
    with (
        Model.load(checkpoint, isa=isa, threads=1) as model,
        Session(
            model,
            threads=2,
            blocks=8,
            states=1,
            max_batch_tokens=256,
            max_batch_logits=256,
            kv_type="f32",
        ) as session,
    ):
        yield session


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_transformers(name: str, path: Path) -> None:
    """Alone and one after the other, in one piece and in the smallest units of work."""
    parts = pictures(name)
    expected = [ARRAYS[f"{name}/rows{number}"] for number in range(len(parts))]
    with open_checkpoint(path) as checkpoint, opened_tower(checkpoint) as tower:
        together = rows_of(tower, parts, budget=0)
        assert close(together, np.concatenate(expected), ROWS)
        ends = np.cumsum([len(rows) for rows in expected])[:-1]
        for part, rows in zip(parts, np.split(together, ends), strict=True):
            assert np.array_equal(rows_of(tower, [part]), rows)
        for number, part in enumerate(more_pictures(name)):
            assert close(rows_of(tower, [part])[:, ::4], ARRAYS[f"{name}/more{number}"], ROWS)


@pytest.mark.parametrize("name", CASES)
def test_logits_of_texts_with_pictures_are_those_of_transformers(name: str, path: Path) -> None:
    parts = pictures(name)
    with open_checkpoint(path) as checkpoint:
        with opened_tower(checkpoint) as tower:
            rows = [rows_of(tower, [part]) for part in parts]
        with opened_text(checkpoint) as session:
            for n in COUNTS:
                case = case_of(checkpoint, parts[:n], rows[:n])
                logits = logits_of(session, case, len(case[0]))
                shown = logits[:, :: 1 if n == 1 else 8]
                assert close(shown, ARRAYS[f"{name}/logits{n}"], LOGITS)
                for chunk in (1, 7):
                    again = logits_of(session, case, chunk)
                    assert np.array_equal(again, logits)


@pytest.mark.parametrize("weights", [None, "q8_0"])
@pytest.mark.parametrize("name", CASES)
def test_levels_threads_and_slices_give_the_same_bits(
    name: str, weights: str | None, path: Path
) -> None:
    part, found = pictures(name)[0], set()
    with open_checkpoint(path) as checkpoint:
        for i, isa in enumerate(usable_levels()):
            with opened_tower(checkpoint, isa, 1 + i % 3, weights) as tower:
                found.add(rows_of(tower, [part], budget=(0, ALL)[i % 2]).tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("name", CASES)
def test_q8_0_is_near_the_weights_as_they_are(name: str, path: Path) -> None:
    part = pictures(name)[0]
    with open_checkpoint(path) as checkpoint:
        with opened_tower(checkpoint) as tower:
            exact = rows_of(tower, [part])
        with opened_tower(checkpoint, weights="q8_0") as tower:
            coded = rows_of(tower, [part])
            assert tower.model.weights == ("q8_0" if name == "idefics3" else "f32")
    cosine = (exact * coded).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(coded, axis=1)
    assert cosine.mean() > 0.999


def write_text_gguf(folder: Path, eps: float) -> Path:
    """A language model of the width of the towers' rows, with as many pairs for each axis."""
    sections = {"llama.rope.dimension_sections": [4, 2, 2, 0]}
    model = tiny_model("llama3", rms_norm_eps=eps, num_hidden_layers=3)
    tokens = [tower.image_token for tower in TOWERS if tower.image_token != "<image>"]
    return write_gguf(
        model, folder / "text.gguf", metadata=sections, more_tokens=["<image>", *tokens]
    )


@pytest.mark.parametrize("name", KINDS)
def test_an_mmproj_file_has_the_rows_of_the_directory(
    name: str, path: Path, tmp_path: Path
) -> None:
    part = pictures(name)[0]
    text = write_text_gguf(tmp_path, CASES[name]["text_config"].get("rms_norm_eps", 1e-5))
    write_mmproj(tower_model(name), tmp_path / "mmproj-text.gguf")
    with open_checkpoint(path) as checkpoint, opened_tower(checkpoint) as tower:
        expected = rows_of(tower, [part])
    with open_checkpoint(text) as checkpoint, opened_tower(checkpoint) as tower:
        assert np.array_equal(rows_of(tower, [part]), expected)
        assert checkpoint.vision is not None
        assert len(checkpoint.vision.preprocessor["image_std"]) == 3


@pytest.mark.parametrize("name", KINDS)
def test_gguf_files_give_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    """The language model's and the tower's, as llama.cpp's converter writes them."""
    parts = pictures(name)[:1]
    with open_checkpoint(write_both(tower_model(name), tmp_path)) as checkpoint:
        with opened_tower(checkpoint) as tower:
            rows = [rows_of(tower, parts)]
        with opened_text(checkpoint) as session:
            case = case_of(checkpoint, parts, rows)
            logits = logits_of(session, case, len(case[0]))
    assert close(logits, ARRAYS[f"{name}/logits1"], LOGITS)


@pytest.mark.reference
def test_goldens_are_what_transformers_computes_now() -> None:
    check_goldens(GOLDEN / "make_towers.py")
