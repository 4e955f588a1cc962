"""The table of towers; a new one is a file and a row."""

from __future__ import annotations

from lanewise.loading.towers import (
    gemma3,
    gemma4,
    gemma4_unified,
    idefics3,
    lfm2_vl,
    mistral3,
    qwen3_5,
)
from lanewise.loading.towers.tower import Tower

TOWERS: tuple[Tower, ...] = (
    idefics3.TOWER,
    gemma3.TOWER,
    gemma4.TOWER,
    gemma4_unified.TOWER,
    qwen3_5.TOWER,
    lfm2_vl.TOWER,
    mistral3.TOWER,
)


def hf_tower(model_type: str) -> Tower | None:
    """Return the tower of a config.json's model_type; None if there is none that is known."""
    return next((tower for tower in TOWERS if model_type in tower.names), None)


def gguf_tower(projector: str) -> Tower | None:
    """Return the tower of an mmproj file's clip.projector_type."""
    return next((tower for tower in TOWERS if projector == tower.projector), None)
