"""The tower's session: one image at a time, in slices, dropped at any point; what it refuses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from family_models import write_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Batch, Model, Session
from lanewise.runtime.tower import Tower, bytes_for, rows_of
from tower_models import picture, tower_model

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

ALL = 1 << 60


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Model, Model]]:
    """A language model and its tower."""
    path = write_model(tower_model("qwen3_5"), tmp_path_factory.mktemp("qwen") / "model")
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tower is not None
        with (
            Model.load(checkpoint, threads=1) as text,
            Model.load(checkpoint.tower, threads=1) as tower,
        ):
            yield text, tower


@pytest.fixture
def tower(models: tuple[Model, Model]) -> Iterator[Tower]:
    with Tower(models[1], threads=1, max_patches=96) as opened:
        yield opened


def test_an_image_that_is_dropped_leaves_the_tower_to_the_next(tower: Tower) -> None:
    parts = [picture(0, 32, 40), picture(1, 16, 16)]
    job = tower.begin(parts)
    assert job.advance(ALL) is False  # one part is done
    assert job.advance(ALL) is True
    expected = job.rows
    assert len(expected) == sum(rows_of(tower.model.config, *p.shape[:2]) for p in parts) == 24
    dropped = tower.begin([picture(2, 32, 32)])
    assert dropped.advance(0) is False
    with pytest.raises(ValueError, match="works on another image; accepted: one at a time"):
        tower.begin(parts)
    dropped.drop()
    assert dropped.is_over
    forgotten = tower.begin([picture(2, 32, 32)])
    assert forgotten.advance(0) is False
    del forgotten
    again, slices = tower.begin(parts), 1
    while not again.advance(0):
        slices += 1
    assert slices > 2 * tower.model.config.n_layers
    assert np.array_equal(again.rows, expected)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (np.zeros((32, 32, 4), np.uint8), r"part 0 is uint8 of shape \(32, 32, 4\); accepted"),
        (np.zeros((32, 32, 3), np.float32), "part 0 is float32"),
        (np.zeros((32, 36, 3), np.uint8), "32 x 36 pixels; accepted: multiples of 8"),
        (np.zeros((0, 8, 3), np.uint8), "0 x 8 pixels"),
        (np.zeros((40, 40, 3), np.uint8), "at most 96 patches of 4 x 4"),
    ],
)
def test_a_part_of_another_form_is_refused(tower: Tower, part: np.ndarray, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tower.begin([part])


def test_a_model_that_reads_tokens_is_no_tower(models: tuple[Model, Model]) -> None:
    with pytest.raises(ValueError, match="reads tokens; accepted: a tower"):
        Tower(models[0], threads=1)


def mapped_bytes() -> int:
    """Memory of this process, whether or not it was touched."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kv_type", ["f32", "int8"])
def test_memory_grows_with_the_picture_as_is_said(
    models: tuple[Model, Model], kv_type: str
) -> None:
    sizes = []
    for most in (32, 65536):
        before = mapped_bytes()
        with Tower(models[1], threads=1, max_patches=most, kv_type=kv_type):
            sizes.append(mapped_bytes() - before)
    few, many = (bytes_for(models[1].config, most, 1, kv_type) for most in (32, 65536))
    # Blocks of memory are mapped in whole huge pages.
    assert 0 <= (sizes[1] - sizes[0]) - (many - few) < 8 << 20


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rows": [(0, np.zeros((2, 63), np.float32))]}, r"shape \(2, 63\); accepted: rows of 64"),
        ({"rows": [(3, np.zeros((2, 64), np.float32))]}, "2 rows from token 3 on, of 4 tokens"),
        ({"positions": np.zeros((2, 4), np.uint32)}, r"positions has shape \(2, 4\); accepted"),
        ({"sees": [0, 0]}, r"sees has shape \(2,\); accepted: \(4,\)"),
        ({"sees": [0, 1, 0, 0]}, r"sees\[1\] is 1, must be 0 or above the token's index 1"),
        ({"sees": [0, 5, 0, 0]}, r"sees\[1\] is 5, .* at most the sequence's 4 tokens"),
    ],
)
def test_a_step_refuses_rows_and_positions_that_do_not_fit(
    models: tuple[Model, Model], changes: dict[str, object], says: str
) -> None:
    batch = Batch([1, 2, 3, 4], [0, 4], [0], [[0]], [3])
    for name, value in changes.items():
        setattr(batch, name, value)
    with (
        Session(models[0], threads=1, blocks=1, max_batch_tokens=8, max_batch_logits=1) as session,
        pytest.raises(Exception, match=says),
    ):
        session.step(batch)
