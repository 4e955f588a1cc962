"""Tiny random models that read pictures: their configs, their pictures, their files.

tests/golden/towers has what transformers writes and computes of them, with the script.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from family_models import FamilyModel, model_of
from published_configs import VOCAB, Config

GOLDEN = Path(__file__).parents[1] / "golden" / "towers"
IMAGE = 250  # token id
Pixels = NDArray[np.uint8]

LLAMA = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
}
# No size of the second is a multiple of 32.
CASES: dict[str, Config] = {
    "idefics3": {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "text_config": LLAMA,
        "vision_config": {
            "model_type": "idefics3_vision",
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 4,
        },
        "scale_factor": 4,
        "image_token_id": IMAGE,
    },
    "smolvlm": {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "model_type": "smolvlm",
        "text_config": LLAMA | {"tie_word_embeddings": True},
        "tie_word_embeddings": True,
        "vision_config": {
            "model_type": "smolvlm_vision",
            "hidden_size": 44,
            "intermediate_size": 70,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 54,
            "patch_size": 6,
        },
        "scale_factor": 3,
        "image_token_id": IMAGE,
    },
}
# Height and width of the pictures of a case, in the order in which a text has them.
SIZES: dict[str, list[tuple[int, int]]] = {
    "idefics3": [(32, 32)] * 3,
    "smolvlm": [(54, 54)] * 3,
}
TEXT_BEFORE = (5, 3, 0)  # tokens before each picture
TEXT_AFTER = 9


def written(name: str) -> dict[str, Any]:
    """Return what transformers writes of a case: config.json, and the shapes of tensors."""
    found: dict[str, Any] = json.loads((GOLDEN / "towers.json").read_text())[name]
    return found


def tower_model(name: str) -> FamilyModel:
    """Return a case's model, always the same bits."""
    return model_of(name, written(name))


def picture(number: int, height: int, width: int) -> Pixels:
    """Return a picture of ramps, edges and noise; the same bits on every machine."""
    y, x, c = np.indices((height, width, 3), np.int64)
    ramp = (7 * y + 5 * x * (number + 1) + 60 * c) // 3
    edge = ((y // 5 + x // (6 + number)) % 2) * 70
    noise = (np.arange(height * width * 3).reshape(y.shape) * 2654435761 >> 13) % 64
    return ((ramp + edge + noise) % 256).astype(np.uint8)


def pictures(name: str) -> list[Pixels]:
    """Return the pictures of a case."""
    return [picture(number, *size) for number, size in enumerate(SIZES[name])]


def prompt_with(rows: list[int]) -> tuple[list[int], list[int]]:
    """Return token ids with so many placeholders for each picture, and where each begins."""
    ids: list[int] = []
    firsts = []
    for number, count in enumerate(rows):
        ids += [(37 * i + 11 * number) % 200 + 2 for i in range(TEXT_BEFORE[number])]
        firsts.append(len(ids))
        ids += [IMAGE] * count
    return [*ids, *((53 * i) % 200 + 2 for i in range(TEXT_AFTER))], firsts
