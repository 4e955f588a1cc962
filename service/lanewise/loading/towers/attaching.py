"""Makes the checkpoint of a tower, and of the language model's one that has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isqrt
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.vision import VisionFacts
from lanewise.loading.programs.binding import bind_tensors
from lanewise.loading.programs.native_program import check_program
from lanewise.loading.towers.tensors import TowerTensors
from lanewise.loading.towers.tower import TextFacts, Tower, TowerFile

STATISTICS = ("image_mean", "image_std")


@dataclass(frozen=True)
class Found:
    """A tower in a file, and what the file says of the language model and of pictures."""

    tower: Tower
    file: TowerFile
    path: Path
    family: str  # see VisionFacts
    image_token_id: int | None
    preprocessor: Mapping[str, Any]
    sections: Any  # pairs of RoPE that turn by each axis, unchecked
    both_ways: Any  # use_bidirectional_attention, unchecked


def attach(opened: Checkpoint, found: Found, close: Callable[[], None] = lambda: None) -> None:
    """Give a checkpoint a tower, which is closed with it. After an error it is as it was."""
    tower, file, path = found.tower, found.file, found.path
    config = check_program(tower.program(file), file.source)
    assert config.pooling is not None
    assert config.patches is not None
    text = text_beside(opened, found, len(config.patches.taps))
    check_width(config, text, path, opened.path)
    named = TowerTensors(file.tensors, file.column)
    (tower.gguf_tensors if file.is_gguf else tower.hf_tensors)(named, config)
    interleaved = file.is_gguf and tower.gguf_interleaved_rope
    tensors = bind_tensors(config, named.out, file.column, interleaved, str(path))
    opened.config = text
    made = Checkpoint(path, opened.name, config, tensors, opened.tokenizer, close)
    give_tower(opened, made, tower, found.family, found.image_token_id, found.preprocessor)


def give_tower(
    opened: Checkpoint,
    made: Checkpoint,
    tower: Tower,
    family: str,
    image_token_id: int | None,
    preprocessor: Mapping[str, Any],
) -> None:
    """Give a checkpoint, whose program is that beside a tower, the checkpoint of a tower."""
    config = made.config
    assert config.patches is not None
    check_width(config, opened.config, made.path, opened.path)
    opened.tower = made
    opened.vision = VisionFacts(
        family=family,
        patch_size=config.patches.side,
        merge=config.patches.merge,
        image_size=config.patches.side * isqrt(config.n_positions),
        image_token_id=image_token_id,
        preprocessor=preprocessor,
        n_axes=tower.n_axes,
        row_token_id=tower.row_token_id,
        both_ways=both_ways_of(opened.config),
    )
    opened.also_close(made.close)


def check_width(tower: ModelConfig, text: ModelConfig, path: Path, text_path: Path) -> None:
    """Raise ModelFileError unless a tower's rows are as wide as the language model reads them."""
    assert tower.pooling is not None
    outputs = tower.pooling.dense[-1].outputs
    if outputs != text.hidden_size:
        raise ModelFileError(
            f"{path}: its rows have {outputs} values; {text_path} reads rows of {text.hidden_size}"
        )


def text_beside(opened: Checkpoint, found: Found, n_taps: int) -> ModelConfig:
    """Return the language model as it is beside a tower."""
    config, n_axes, said = opened.config, found.tower.n_axes, found.sections
    numbers = [*said][:n_axes] if isinstance(said, list | tuple) else []
    half = config.ropes[0].rotated // 2 if config.ropes else 0
    whole = len(numbers) == n_axes and all(type(n) is int and n >= 0 for n in numbers)
    if n_axes > 1 and (not whole or sum(numbers) != half):
        raise ModelFileError(
            f"{opened.path}: {said!r} pairs of RoPE turn by each of {n_axes} positions; numbers"
            f" that add up to {half} are needed"
        )
    if config.residual_scale != 1.0:
        raise ModelFileError(
            f"{opened.path}: residual_scale is {config.residual_scale}; 1 is needed beside a tower"
        )
    beside = replace(found.tower.text(config, TextFacts(numbers, found.both_ways)), n_taps=n_taps)
    return check_program(beside, str(opened.path))


def both_ways_of(config: ModelConfig) -> str:
    """Return in which layers tokens of a picture see later ones."""
    attentions = [layer.attention for layer in config.layers if layer.attention is not None]
    sees = [attention.sees_ahead for attention in attentions]
    return "all" if all(sees) else "sliding" if any(sees) else "none"
