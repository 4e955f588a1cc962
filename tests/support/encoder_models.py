"""Tiny random encoders as directories, and the texts that they are compared with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from encoder_configs import CASES, Config
from family_models import FamilyModel, values_of

GOLDEN = Path(__file__).parents[1] / "golden" / "encoders"
# Less than a block, both sides of tiles and windows, more than all of them.
LENGTHS = (1, 7, 32, 33, 65, 200)

Ids = NDArray[np.uint32]


def encoder_model(name: str) -> FamilyModel:
    """Return a case's model, always the same bits."""
    written = json.loads((GOLDEN / "encoders.json").read_text())[name]
    tensors = {key: values_of(key, tuple(shape)) for key, shape in written["tensors"].items()}
    return FamilyModel(name, written["config"], tensors)


def texts_of(lengths: tuple[int, ...] = LENGTHS) -> list[Ids]:
    """Return token ids all over the vocabulary; none is that of padding."""
    return [
        np.array([(37 * i + i * i // 5 + 61 * n) % 251 + 3 for i in range(n)], np.uint32)
        for n in lengths
    ]


def types_of(config: Config, lengths: tuple[int, ...] = LENGTHS) -> list[Ids]:
    """Return token types: the second half of a text is another one, if there are two."""
    two = config.get("type_vocab_size", 1) > 1
    return [(np.arange(n) > n // 2).astype(np.uint32) * np.uint32(two) for n in lengths]


def is_classifier(name: str) -> bool:
    """Return whether a case has scores, not rows."""
    return "Classification" in CASES[name]["architectures"][0]
