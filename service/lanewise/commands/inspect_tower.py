"""What ``lanewise inspect`` tells of the part of a model that reads pictures."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lanewise.host import format_size
from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint


@dataclass(frozen=True, slots=True)
class TowerAbout:
    """A tower as it would be served: its file, its size, and what it reads at a time."""

    family: str
    path: str  # of its file, or of the directory
    weights: int
    type: str  # of most matrices
    bytes: int
    layers: int
    patch: int  # pixels of a side
    tokens_of_pixels: int  # pixels of a side of what becomes one token


def tower_about(path: Path) -> dict[str, Any] | None:
    """About the tower of a model's file or directory, or beside it; None if there is none."""
    try:
        with open_checkpoint(path, mtp=None) as checkpoint:
            return None if checkpoint.tower is None else asdict(_about(checkpoint))
    except ModelFileError:
        return None  # what cannot be served is inspected all the same


def _about(checkpoint: Checkpoint) -> TowerAbout:
    tower, vision = checkpoint.tower, checkpoint.vision
    assert tower is not None
    assert vision is not None
    return TowerAbout(
        family=vision.family,
        path=str(tower.path),
        weights=tower.n_weights,
        type=tower.weights_name,
        bytes=sum(tensor.n_bytes for tensor in tower.tensors),
        layers=tower.config.n_layers,
        patch=vision.patch_size,
        tokens_of_pixels=vision.patch_size * vision.merge,
    )


def tower_line(about: dict[str, Any]) -> str:
    """One line for people."""
    side, token = about["patch"], about["tokens_of_pixels"]
    return (
        f"reads pictures with {about['path']}: tower of {about['family']},"
        f" {about['weights']} weights, {format_size(about['bytes'])} of {about['type']}; patches of"
        f" {side} x {side} pixels, a token for {token} x {token}"
    )
