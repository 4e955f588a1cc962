"""Towers of published sizes with random weights: the files that they are measured with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Model
from lanewise.runtime.targets import target_types
from lanewise.runtime.tower import Tower
from loadtests.tower_files import F16, Q8_0, SHAPES, picture_of, write_mmproj, write_text

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]


@pytest.mark.parametrize("name", SHAPES)
def test_files_of_both_types_make_rows_that_are_alike(name: str, tmp_path: Path) -> None:
    """Small ones. Rows of the last matrix of an FFN are no whole groups of 32 in the file."""
    shape = SHAPES[name]
    side = 4 * shape.merge * shape.patch
    small = replace(
        shape, width=64, heads=4, layers=2, ffn=80, text=64, image_size=side, picture=(side, side)
    )
    text, picture, found = write_text(small, tmp_path / "text.gguf"), picture_of(small), []
    for kind in (F16, Q8_0):
        path = write_mmproj(small, tmp_path / f"mmproj-{kind.name}.gguf", kind)
        with open_checkpoint(text, mmproj=path) as checkpoint:
            assert checkpoint.tower is not None
            is_coded = [one.type for one in checkpoint.tower.tensors].count(TensorType.Q8_0) > 0
            held = [*target_types(checkpoint.tower, None)]
            assert held == [*target_types(checkpoint.tower, kind.name.lower())]
            with Model.load(checkpoint.tower) as model, Tower(model, threads=1) as tower:
                job = tower.begin([picture])
                assert job.advance(1 << 60)
                found.append(job.rows)
                assert model.weights == kind.name.lower()
        assert is_coded == (kind is Q8_0)
        layers = {t.role: to for t, to in zip(checkpoint.tower.tensors, held, strict=True)}
        of_layers = {to for role, to in layers.items() if role.name in ("FFN_DOWN", "ATTN_Q")}
        assert of_layers == {TensorType.Q8_0 if is_coded else TensorType.F16}
    exact, coded = found
    cosine = (exact * coded).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(coded, axis=1)
    assert cosine.mean() > 0.999
