"""What becomes of the part of a model that reads pictures when the model is quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lanewise.commands.opening import load_tower, mmproj_of, warn
from lanewise.loading.base.checkpoint import Checkpoint
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.checkpoints.packed_checkpoint import TOWER_WEIGHTS
from lanewise.loading.towers.stored import tower_as_json
from lanewise.loading.writing.packed_writer import packed_config, write_weights
from lanewise.settings import QuantizeSettings, SettingsError


def open_whole(source: Path, settings: QuantizeSettings) -> Checkpoint:
    """Open a model with its tower, unless that is to be left out."""
    return open_checkpoint(source, mmproj=mmproj_of(settings), tower=not settings.text_only)


def check_tower(source: Path, settings: QuantizeSettings) -> None:
    """Refuse before hours of work what cannot be had, and say what will be left out."""
    with open_whole(source, settings) as whole:
        tower = whole.tower
    if tower is None and settings.tower_weights is not None:
        raise SettingsError("--tower-weights: this model reads text only; accepted: none")
    if tower is not None and settings.gguf:
        where = f"give {tower.path} beside it" if tower.path.is_file() else "give one beside it"
        warn(
            f"{source}: what reads pictures is left out: GGUF has it in an mmproj file; {where}"
            " (lanewise serve --mmproj)"
        )


def write_tower(
    source: Path, folder: Path, settings: QuantizeSettings, threads: int, notes: dict[str, Any]
) -> dict[str, Any] | None:
    """Write the tower as it is, or as asked, and return config.json; None without a tower."""
    with open_whole(source, settings) as whole:
        if whole.tower is None:
            return None
        with load_tower(whole.tower, settings, threads) as model:
            tensors = [model.packed(tensor) for tensor in whole.tower.tensors]
            write_weights(folder / TOWER_WEIGHTS, tensors, model.info.isa)
        return packed_config(whole, **notes, **tower_as_json(whole))
