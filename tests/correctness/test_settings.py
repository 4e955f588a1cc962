"""Settings other than published ones, run live: the logits of transformers, or a refusal."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import topics
from family_models import CASE_NAMES, GOLDEN, model_of, write_model
from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.programs import reference
from lanewise.runtime import Batch, Model, Session
from published_configs import CASES, STAND_INS

pytestmark = [
    pytest.mark.native,
    pytest.mark.reference,
    pytest.mark.usefixtures("library"),
    pytest.mark.filterwarnings("ignore"),  # of transformers
]
TOLERANCE = 2e-4  # of the largest logit
WINDOW, CAP, CURVE = 7, 2.0, "relu"
NOT_OF_ANSWERS = ("dropout", "pdrop", "initializer_range", "coef", "output_", "return_dict")
# Cases that differ from another of their model_type in sizes alone would try the same again.
FIRST_OF_TYPE = {CASES[name]["model_type"]: name for name in reversed(CASE_NAMES)}
NAMES = sorted({*FIRST_OF_TYPE.values()} - STAND_INS.keys())


@pytest.fixture(scope="module")
def families() -> ModuleType:
    """What makes the goldens of families."""
    topics.module("torch", "reference")
    spec = importlib.util.spec_from_file_location("make_families", GOLDEN / "make_families.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def changes(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each field that the reference reads, with a value other than what is meant."""
    from transformers import CONFIG_MAPPING

    kind = config["model_type"]
    meant = CONFIG_MAPPING[kind].from_dict(dict(config)).to_dict()
    for key, default in sorted(reference.config_fields(kind).items()):
        value = meant.get(key, default)
        if any(part in key for part in NOT_OF_ANSWERS):
            continue
        if isinstance(value, bool):
            yield key, not value
        elif isinstance(value, float):
            yield key, 1.5 * value or 0.5
        elif key.endswith(("hidden_act", "hidden_activation")):
            yield key, CURVE
        elif key == "sliding_window":
            yield key, WINDOW
        elif key == "time_step_limit":
            yield key, [0.01, 0.3]
        elif value is None and ("clip" in key or "softcap" in key):
            yield key, CAP


def ours(folder: Path, ids: list[int]) -> np.ndarray | None:
    """The logits of the model of a directory; None if it has become an embedder."""
    with open_checkpoint(folder) as checkpoint:
        return None if checkpoint.config.pooling else logits_of(checkpoint, ids)


def logits_of(checkpoint: Checkpoint, ids: list[int]) -> np.ndarray:
    with (
        Model.load(checkpoint, threads=1) as model,
        Session(
            model,
            threads=1,
            blocks=4,
            states=1,
            max_batch_tokens=len(ids),
            max_batch_logits=len(ids),
            kv_type="f32",
        ) as session,
    ):
        batch = Batch(ids, [0, len(ids)], [0], [[0, 1, 2]], range(len(ids)))
        return session.step(batch).copy()


@pytest.mark.parametrize("name", NAMES)
def test_no_setting_is_passed_over(name: str, families: ModuleType, tmp_path: Path) -> None:
    ids, compared = families.prompt_of(1), 0
    for number, (key, value) in enumerate(changes(CASES[name])):
        config = CASES[name] | {key: value}
        try:
            record = families.written(config)
            expected = families.forward(families.load(name, record), ids)
        except (Exception, SystemExit):
            continue  # no such model can be made
        for form in (config, record["config"]):
            folder = tmp_path / f"{number}-{form is config}"
            write_model(model_of(name, record), folder, json.loads(json.dumps(form)))
            try:
                found = ours(folder, ids)
            except ModelFileError:
                continue
            if found is None:
                continue
            distance = np.abs(found - expected).max() / np.abs(expected).max()
            assert distance < TOLERANCE, (key, value, form is config)
            compared += 1
    assert compared > 0
