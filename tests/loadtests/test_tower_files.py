"""Towers of published sizes with random weights: the files that they are measured with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Model
from lanewise.runtime.targets import target_types
from lanewise.runtime.tower import Tower
from loadtests.pictures import main
from loadtests.tower_files import F16, Q8_0, SHAPES, Shape, picture_of, write_mmproj, write_text
from serving import lanewise_server

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]


def small(name: str) -> Shape:
    """A shape of two layers, for pictures of four blocks a side."""
    shape = SHAPES[name]
    side = 4 * shape.merge * shape.patch
    sizes = {"width": 64, "heads": 4, "layers": 2, "ffn": 80, "text": 64}
    return replace(shape, **sizes, image_size=side, picture=(side, side))


@pytest.mark.parametrize("name", SHAPES)
def test_files_of_both_types_make_rows_that_are_alike(name: str, tmp_path: Path) -> None:
    """Small ones. Rows of the last matrix of an FFN are no whole groups of 32 in the file."""
    shape = small(name)
    text, picture, found = write_text(shape, tmp_path / "text.gguf"), picture_of(shape), []
    for kind in (F16, Q8_0):
        path = write_mmproj(shape, tmp_path / f"mmproj-{kind.name}.gguf", kind)
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


@pytest.mark.e2e
@pytest.mark.slow
def test_pictures_beside_decoders_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = small("gemma4-e4b")
    text = write_text(shape, tmp_path / "text.gguf")
    write_mmproj(shape, tmp_path / "mmproj-text.gguf", Q8_0)
    with lanewise_server(str(text), "--threads", "1") as url:
        arguments = ["--url", url, "--decoders", "2", "--pictures", "2", "--calm", "1", "--json"]
        assert main([*arguments, "--height", "96", "--width", "144"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert report["picture_tokens"] > 200  # it is made larger
    assert report["picture_alone_ms"]["p50"] > 0
    assert 0 < report["itl_beside_ms"]["p50"] <= report["itl_beside_ms"]["p99"]
