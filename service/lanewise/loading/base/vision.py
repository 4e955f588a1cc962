"""What is known about the pictures that a model reads, before one is seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class VisionFacts:
    """Facts for whatever turns a picture into pixels and a prompt; the tower has the rest."""

    family: str  # model_type of the whole model, such as "idefics3"
    patch_size: int
    merge: int  # side of a block of patches, whose rows are one token
    image_size: int  # pixels of a side of the square picture that positions were learned for
    image_token_id: int | None  # None: the file does not say
    # preprocessor_config.json's fields, or those that an mmproj file says, under the same names.
    preprocessor: Mapping[str, Any] = field(default_factory=dict)
    max_tokens_per_image: int | None = None
    row_token_id: int | None = None  # the id to give for a token that has a row; None: any
    n_axes: int = 1  # positions of a token in the language model
    # Layers in which tokens of a picture see later ones of it: none, all or sliding.
    both_ways: str = "none"
