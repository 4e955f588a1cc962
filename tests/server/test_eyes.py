"""Whether a server reads images: what refuses them at the start, and what is counted of them."""

from __future__ import annotations

import importlib.util
import logging
import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import topics
from lanewise.loading.base.checkpoint import Checkpoint
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime.tower import rows_of
from lanewise.server.eyes import make_eyes
from lanewise.settings import Settings
from lanewise.text.images.families import family_of
from lanewise.text.images.layouts import DETAILS, ImageError
from lanewise.text.tokenizer import Tokenizer
from seeing_models import SEEING, write_seeing_model
from tower_models import IMAGE

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]


@pytest.fixture(scope="module", params=list(SEEING))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    path = write_seeing_model(tmp_path_factory.mktemp("models") / request.param, request.param)
    with open_checkpoint(path) as checkpoint:
        yield checkpoint


def size_of(drawn: random.Random) -> tuple[int, int]:
    """Any shape up to 300 pixels, thin ones and tiny ones among them."""
    most = [drawn.choice((3, 20, 64, 300)) for _ in range(2)]
    return drawn.randint(1, most[0]), drawn.randint(1, most[1])


def test_a_tower_makes_as_many_rows_as_there_are_placeholders(checkpoint: Checkpoint) -> None:
    """Of any size, at any detail; and takes pictures of the sizes that they are made."""
    assert checkpoint.vision is not None
    assert checkpoint.tower is not None
    config, drawn = checkpoint.tower.config, random.Random(7)
    assert config.patches is not None
    family = family_of(asdict(checkpoint.vision), "<row>")
    block, n_read = config.patches.side * config.patches.merge, 0
    for _ in range(n_cases := topics.cases(150, 1000)):
        size, detail = size_of(drawn), drawn.choice(DETAILS)
        try:
            layout = family.layout(size, detail)
        except ImageError:
            assert max(size) > 48 * min(size), (size, detail)  # the least that a family takes
            continue
        n_read += 1
        lines = sum(view.lines for view in layout.views)
        assert family.text(layout).count("<row>") == lines, (size, detail)
        for view in layout.views:
            width, height = view.size
            assert view.n_tokens == rows_of(config, height, width) > 0, (size, detail)
            assert (width % block, height % block, view.n_tokens % view.lines) == (0, 0, 0)
            assert view.n_tokens * config.patches.merge**2 <= config.context_length
    assert n_read > n_cases * 0.8


def refusal(
    caplog: pytest.LogCaptureFixture, path: Path, windows: tuple[int | None, ...] = (None,), **more
) -> str:
    """Why images are refused; "" if they are read."""
    caplog.clear()
    changes = more.pop("vision", {})
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.vision is not None
        vision = replace(checkpoint.vision, **changes)
        tokenizer = Tokenizer.from_files(checkpoint.tokenizer)
        made = make_eyes(Settings(**more), vision, tokenizer, windows)
    # Other tests may have chosen that what is only told is logged, too.
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    (said,) = [record.getMessage() for record in warnings] or [""]
    assert (made is None) == bool(said)
    return said


def test_what_cannot_be_read_is_refused_at_the_start(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image that must be in one step and one window has room in both, or is never read."""
    causal = write_seeing_model(tmp_path / "causal", "idefics3")
    ahead = write_seeing_model(tmp_path / "ahead", "gemma3")  # 4 tokens each
    large = write_seeing_model(tmp_path / "large", "gemma4_large")  # 70 tokens at least
    assert refusal(caplog, causal, max_step_tokens=1) == ""
    assert refusal(caplog, ahead, max_step_tokens=4) == ""
    said = refusal(caplog, ahead, max_step_tokens=3)
    assert "a step and a window have all 4 tokens of one; there is room for 3" in said
    assert "accepted: a larger max_step_tokens" in said
    assert "there is room for 2" in refusal(caplog, ahead, windows=(None, 2))
    assert refusal(caplog, large, windows=(None, 96)) == ""
    said = refusal(caplog, large, windows=(None, 96), max_step_tokens=20)
    assert "an image has 70 tokens; there is room for 20 in a step" in said
    assert refusal(caplog, causal, vision={"image_token_id": None}).endswith("is no control token")
    assert "65, is no control token" in refusal(caplog, causal, vision={"image_token_id": 65})
    odd = {"vision": {"preprocessor": {"size": "large"}}}
    assert "images are refused: " in refusal(caplog, causal, **odd)
    assert refusal(caplog, causal, vision={"image_token_id": IMAGE}) == ""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "PIL" else found(name)
    )
    assert refusal(caplog, causal) == "images are refused: Pillow is not installed (extra `vision`)"


def test_a_model_that_reads_text_alone_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert make_eyes(Settings(), None, None, ()) is None
    assert not caplog.records
