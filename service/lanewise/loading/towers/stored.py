"""A tower in the directories of `lanewise pack`: its program, and what is known about pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lanewise.loading.base.checkpoint import Checkpoint
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.names import HF
from lanewise.loading.base.sources import Sources
from lanewise.loading.programs.binding import bind_tensors
from lanewise.loading.programs.stored_program import AGAIN, program_as_json, read_program
from lanewise.loading.towers.attaching import give_tower
from lanewise.loading.towers.table import TOWERS, hf_tower

NAME = "tower"  # in quantization_config


def tower_as_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what :func:`add_stored_tower` reads; {} of a model without a tower."""
    tower, vision = checkpoint.tower, checkpoint.vision
    if tower is None or vision is None:
        return {}
    about = {
        "family": vision.family,
        "image_token_id": vision.image_token_id,
        "preprocessor": dict(vision.preprocessor),
        "model": program_as_json(tower.config),
    }
    return {NAME: about}


def add_stored_tower(
    opened: Checkpoint, packed: Fields, sources: Sources, close: Callable[[], None]
) -> None:
    """Give a directory's checkpoint its tower; ModelFileError if it is none of a known kind."""
    about = _object(packed, NAME)
    family = about.text("family")
    tower = hf_tower(family)
    if tower is None:
        known = sorted(name for tower in TOWERS for name in tower.names)
        raise about.fail("family", f"one of {', '.join(known)}")
    model = _object(about, "model")
    config = read_program(model)
    if config.patches is None or config.pooling is None or not config.pooling.dense:
        raise model.fail("patches", f"those of a tower, with dense heads behind them ({AGAIN})")
    n_taps = len(config.patches.taps)
    if n_taps != opened.config.n_taps:
        accepted = f"the {opened.config.n_taps} that the language model adds ({AGAIN})"
        raise model.fail("patches", f"as many taps as {accepted}")
    tensors = bind_tensors(config, sources, HF, False, str(opened.path))
    token = about.integer("image_token_id", least=0) if about.is_set("image_token_id") else None
    preprocessor = _object(about, "preprocessor").values
    made = Checkpoint(opened.path, opened.name, config, tensors, opened.tokenizer, close)
    give_tower(opened, made, tower, family, token, preprocessor)


def _object(fields: Fields, key: str) -> Fields:
    value = fields.values.get(key)
    if not isinstance(value, Mapping):
        raise fields.fail(key, f"an object ({AGAIN})")
    return Fields(value, f"{fields.source}: {key}")
